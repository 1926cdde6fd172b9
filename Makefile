# Go and make are all that `make run` and `make test` need. Bare `make` prints the targets from their ## comments.

# Options, given as in `make fuzz T=1m`.
T     ?= 10s
NAME  ?= .
COUNT ?= 6
PKG   ?= ./...
REF   ?= main
ARGS  ?=
HOSTS   ?= 1000
SCRAPES ?= 60
HOURS   ?= 12
REPEAT  ?= 3
SEED    ?= 0
EVENTS  ?= 1000000
FAULTS  ?= all
MEMORY  ?= 512MiB
FOR     ?= 5s
ONLY    ?= .
GOODPUT ?= 0.9
LATENCY ?= -latency
# How many of its tests test-cluster runs at once, each with a cluster of processes. They wait for leases, grace times and starts: nine that
# lasted 867 s together used a processor for 136 s, on a machine with 40 other processes (2026-11-28).
CLUSTERS ?= 8

# The commit whose program test-cluster upgrades from, and rolls back to: that of the last release, as soon as there is one.
PREVIOUS ?= cd0cf359

# All is compiled as build does it, without cgo: tests take the packages that are compiled, and no C compiler is needed but for
# the race detector. What GOFLAGS says otherwise is kept.
export CGO_ENABLED ?= 0
GOFLAGS := $(strip $(or $(GOFLAGS),$(shell go env GOFLAGS)) $(if $(findstring -trimpath,$(GOFLAGS)),,-trimpath) $(if $(findstring -tags,$(GOFLAGS)),,-tags=grpcnotrace))
# The compiler and the linker collect garbage a third as often, and nothing else does: storage/brick, protocols/peer/rpc and all that they import
# took 114 to 125 s of processor time instead of 136 to 143 (2026-12-01, three pairs on a machine with load 30). What they make is the same.
export GOFLAGS := $(GOFLAGS)$(if $(findstring -toolexec,$(GOFLAGS)),, '-toolexec=env GOGC=300')

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
CODE    := $(wildcard cmd gateway grafana metadata presplit protocols smear storage)

# $(call any,words) is a regular expression of any of them.
none :=
any = $(subst $(none) $(none),|,$(strip $(1)))

# Machines and plans have one goroutine (a law of cmd/archtest). They and the decoders, which are functions of their bytes, run
# without the race detector, five times faster.
UNRACED := metadata/topology metadata/lease metadata/retention storage/chain storage/replica storage/staging storage/gate \
	storage/lead/rules storage/rows storage/surplus storage/unload gateway/admit gateway/follow gateway/ha gateway/query/columnar \
	gateway/route cmd/spillway/diagram cmd/spillway/findings

# These start no goroutine (a law, too): of their tests those run under the race detector that start some, with all others of the same
# files.
RACED_IN_PART := storage/partition storage/segment storage/series storage/head storage/metafile
RACED_TESTS = $(shell grep -lE '(^|[{;])\s*go\b|\.Go\b|\.Parallel\b' $(RACED_IN_PART:%=%/*_test.go) | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p')

# Where goroutines meet. Not main, which reads command lines, nor promqlsuite, whose scripts run without the race detector: their 230 packages,
# most of them clouds' SDKs, are not compiled for it. Nor the tests that start processes, into which it does not see. The longest package goes first: at the end it would run alone.
RACED = $$(go list ./cmd/pathtest ./cmd/spillway/... ./storage/... ./gateway/... ./metadata/... ./protocols/point ./protocols/peer/... | grep -vE '/($(call any,cmd/spillway gateway/query/promqlsuite $(UNRACED) $(RACED_IN_PART)))$$')

# One goroutine that inflates megabytes, compares large values, flips every bit, or asks large queries or thousands of them one after the
# other: minutes of the race detector's time for nothing. They run without it.
RACED_NOT := TestBodiesOfEverySizeArriveWhole TestBombsStaySmall \
	TestMemoryOfOthersSurvives(AQueryThatWantsTooMuch|ShortSeriesOverManySteps) TestEveryFieldTravels \
	TestNarrowPartitionsLieOnTheServersInTurn TestALoadIsReplayedFromAFileAndFromPrometheus \
	TestPiecesFitIntoFrames TestPlansAreSafeAndEnd TestAServerThatDiesLosesNoEmptyPartition TestNoTwoActAsMaster TestCopiesGoWhereThereIsRoom \
	TestOneServerDoesNotDoAllTheWork TestNoiseHandsNothingToAndFro TestDeletedRowsStayDeletedAndOthersStay TestOrderIsThatOfLabels \
	TestAckedRowsSurviveAFlippedBitInTheCatalogue TestARepairedCatalogueGivesAllRowsBack TestReadsOfPlainBlocksAreThoseOfOpenedOnes TestWhatIsAckedAtABoundComesBack \
	TestFlippedBitsAreDamageAndNotTheEnd TestTruncatedAtEveryByteAnOpenFileGivesItsExactPrefix TestADamagedMirrorOfMetadataGivesAStateThatWas

RACED_SKIP = -skip '^($(call any,$(RACED_NOT)))$$'

# Tests that run in parallel wait most of their time, and so do the packages cmd/standalonetest, gateway/intake/kafka and cmd/spillway/process, a
# minute and a half each: one package more is tested at once than there are processors.
PACKAGES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)
PARALLEL = -p=$(PACKAGES) -parallel=4

# With TEST_SEED random tests draw the same in every run; without, each run draws anew.
SEEDED := $(if $(TEST_SEED),-exec '$(CURDIR)/.ci/seeded')

# A test that hangs is ended after that, package by package. On two cores no package takes a sixth of it.
LIMIT ?= 25m

# Its analyzers are a part of check. go test would run some again, on a package and on all that it imports, for each way of compiling them. Without
# the tables of a debugger and of the linker's symbols (-s) a test program is linked in less than half of the time, and there are 180; traces name
# their lines all the same.
TEST := go test -vet=off -ldflags=-s

# The analyzers of go vet and staticcheck, by staticcheck's driver. Collecting garbage half as often saved staticcheck a sixth of its processor time, for a third more of memory.
BUILD_VET = go build -ldflags=-s -o $(CURDIR)/bin/tools/vet ./cmd/vet
RUN_VET = GOGC=200 $(CURDIR)/bin/tools/vet
VET = $(BUILD_VET) && $(RUN_VET)

.DEFAULT_GOAL := help
.PHONY: test-docker test-s3 size etcd package test-package test-helm release help build run test check corrupt sim test-clients kill crash golden fuzz bench bench-narrow bench-smear bench-unload bench-moves bench-edges plot-smear compare generate cover load bench-query rivals clean test-kafka cluster demo test-cluster chaos hang attack overload page page-check test-browser

help:
	@echo "Spillway. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

build: ## bin/spillway, static
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/spillway ./cmd/spillway

size: ## the stripped program stays small: at most 48 MB, and nothing in it calls methods by name
	PROGRAM_SIZE=1 $(TEST) -count=1 -v -run TheProgramIsSmall ./cmd/archtest

run: build ## build and start one process with everything inside; ARGS="--data-dir=…"
	bin/spillway standalone $(ARGS)

# The detector needs cgo, with which pebble would compile zstd in C.
RACE = CRASH_IMAGES=20 KILL_COUNT=1 CGO_ENABLED=1 $(TEST) $(SEEDED) -tags=grpcnotrace,pebblegozstd -race -short $(PARALLEL) -timeout=$(LIMIT)

# CI runs check and test.
# The test of cmd/vet is a part of check: it would compile staticcheck, a sixteenth of all that tests compile.
test: ## the laws of cmd/archtest and all tests, then the concurrent ones under the race detector
	$(TEST) ./cmd/archtest # as check runs it, so that it is not run again after that
	$(TEST) $(SEEDED) $(PARALLEL) -timeout=$(LIMIT) $$(go list ./... | grep -vE '/cmd/(archtest|vet)$$')
	@gcc=$$(go env CC); command -v $${gcc%% *} >/dev/null || { echo "the race detector needs a C compiler, and there is no $$gcc: all passed but that"; exit 0; }; \
	set -ex; $(RACE) $(RACED_SKIP) $(RACED); $(RACE) $(RACED_SKIP) -run '^($(call any,$(RACED_TESTS)))$$' $(RACED_IN_PART:%=./%)

check: ## gofmt, the analyzers of go vet and staticcheck (cmd/vet) and their test, and the laws of cmd/archtest
	@unformatted=$$(gofmt -l $(CODE)); [ -z "$$unformatted" ] || { echo "not as gofmt would have it:"; echo "$$unformatted"; exit 1; }
	$(VET) ./...
	$(TEST) ./cmd/vet ./cmd/archtest

test-clients: ## real Telegraf, Prometheus and libraries of PyPI and npm against a real spillway; builds them first, which takes minutes
	cmd/clienttest/install.sh
	$(VET) -tags clients ./cmd/clienttest/...
	$(TEST) -tags clients -count=1 -timeout=15m ./cmd/clienttest/...

# A run that finds no such test would pass: it must not. Files that are compiled here are searched: a list by the test program would
# cost its linking. $(call has,folder,pattern)
has = (cd $(lastword $(1)) && grep -hoE '^func Test[A-Za-z0-9_]*' $$(go list -f '{{join .TestGoFiles " "}} {{join .XTestGoFiles " "}}' $(filter-out ./%,$(1)) .) | grep -qE '$(2)') || { echo "$(1) has no test that matches $(2)"; exit 1; }

kill: ## a process under load, killed again and again: what was acked is there; KILL_COUNT=20
	@$(call has,./cmd/clustertest,Kill)
	@$(call has,./cmd/standalonetest,Kill)
	KILL_COUNT=$${KILL_COUNT:-20} $(TEST) -count=1 -timeout=15m -run Kill ./cmd/clustertest ./cmd/standalonetest

crash: ## power cuts at every moment, on disks that lose what was not synced; CRASH_IMAGES=1000
	@$(call has,./storage/brick,LoseNothingAcked$$)
	@$(call has,./storage/server,LoseNothingAcked$$)
	CRASH_IMAGES=$${CRASH_IMAGES:-1000} $(TEST) -count=1 -timeout=60m -run 'LoseNothingAcked$$' ./storage/brick ./storage/server

corrupt: ## a store's files corrupted again and again, closed and under a running process: no row is lost in silence; N=500 TEST_SEED= CORRUPT_WORLD=dir CORRUPT_CASE=
	@$(call has,./cmd/spillway/process,CorruptionsLoseNothing)
	CORRUPT_N=$${N:-500} $(TEST) -count=1 -v -timeout=120m -run 'CorruptionsLoseNothing' ./cmd/spillway/process

sim: ## a cluster's life in one goroutine, by a seed; SEED=0x2f9c31 EVENTS=1000000 FAULTS=all or all,restore or partition,crash,… ARGS=-v or "-runs 20" or "-partitions 2000 -copies 3"
	go run ./cmd/sim -seed $(SEED) -events $(EVENTS) -faults $(FAULTS) $(ARGS)

# Test files that define -update, or -rewrite as the datadriven package does.
UPDATERS  = $$(grep -rl --include='*_test.go' 'flag.Bool("update"' $(CODE) | xargs -r -n1 dirname | sort -u | sed 's|^|./|')
REWRITERS = $$(grep -rlE --include='*_test.go' 'flag.Bool\("rewrite"|cockroachdb/datadriven"' $(CODE) | xargs -r -n1 dirname | sort -u | sed 's|^|./|')

golden: ## rewrite the golden files, then show the diff
	go test -count=1 $(UPDATERS) -update
	go test -count=1 $(REWRITERS) -rewrite
	git --no-pager diff --stat -- '*testdata*'

fuzz: ## every fuzz target for a while; T=10s
	@.ci/fuzz $(T) $(CODE)

bench: ## benchmarks; NAME=Merge COUNT=6 PKG=./storage/rows
	go test -run '^$$' -bench '$(NAME)' -count $(COUNT) $(PKG)

bench-smear: build etcd ## CPU of rows that wait against rows that do not, in turns in one cluster of three servers; 8 min; SMEAR_COPIES=3, SMEAR_WINDOW=20s (a third table with this window), SMEAR_RATE=80000 (rows a second), SMEAR_RUN=10s (how long rows are written), SMEAR_TAGS=,os=linux (more tags of each row), SMEAR_PROFILE=DIR (profiles of all processes in the first round)
	@$(call has,./cmd/clustertest,TestClusterSmearCost$$)
	SMEAR_COST=1 CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway go test -count=1 -v -timeout=30m -run 'TestClusterSmearCost$$' ./cmd/clustertest

bench-unload: build etcd ## CPU of rows that move from a partition to its halves against that of writing them, three copies on three servers; 3 min; UNLOAD_FOR=30s (how long rows are written), SMEAR_RATE=80000, SMEAR_PROFILE=DIR
	@$(call has,./cmd/clustertest,TestClusterUnloadCost$$)
	UNLOAD_COST=1 CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway go test -count=1 -v -timeout=20m -run 'TestClusterUnloadCost$$' ./cmd/clustertest

bench-edges: build etcd ## how long rows wait for their acks across edges of partitions, beside a table that has none, in turn; p99.9 within 10 ms; 4 min; EDGES=100 EDGES_REPLICAS=3
	@$(call has,./cmd/clustertest,TestClusterEdgesCost$$)
	EDGES_COST=1 CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway go test -count=1 -v -timeout=20m -run 'TestClusterEdgesCost$$' ./cmd/clustertest

bench-moves: build etcd ## how long rows wait for their acks while their partition is split, and while a server is drained, and how many bytes a second leave it; 6 min; MOVE_BYTES=300000000 (of the partition, of the server), MOVE_RATE=200000 (rows a second), MOVE_COPY=64MiB (storage.copy_bytes_per_second), NAME=Split or Drain
	@$(call has,./cmd/clustertest,TestClusterSplitCost$$)
	MOVE_COST=1 CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway go test -count=1 -v -timeout=30m -run 'TestCluster($(or $(filter-out .,$(NAME)),Split|Drain))Cost$$' ./cmd/clustertest

plot-smear: build etcd ## the load of three servers over time, without smearing and with it, drawn into docs/proofs/smear.svg
	@$(call has,./cmd/clustertest,TestClusterSmearSpreadsTheLoad$$)
	SMEAR_SVG=$(CURDIR)/docs/proofs/smear.svg CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway go test -count=1 -v -timeout=10m -run 'TestClusterSmearSpreadsTheLoad$$' ./cmd/clustertest

bench-narrow: ## a million series in partitions 10 s wide, a row of each, against one partition with the same rows; SERIES=1000000 SCRAPES=12 PERIOD=1s
	@for width in 24h 10s; do \
		SPILLWAY_SERIES=$${SERIES:-1000000} SPILLWAY_SCRAPES=$${SCRAPES:-12} SPILLWAY_PERIOD=$(PERIOD) \
		go test -run '^$$' -bench "Narrow/$$width" -benchtime=1x -timeout=60m ./storage/server | grep Narrow; \
	done

compare: ## benchmarks of a revision against those of this folder; REF=main, else as bench
	@rm -rf .cache/compare && mkdir -p .cache && git worktree prune && git worktree add -q --detach .cache/compare $(REF)
	-cd .cache/compare && go test -run '^$$' -bench '$(NAME)' -count $(COUNT) $(PKG) >../before.txt
	-go test -run '^$$' -bench '$(NAME)' -count $(COUNT) $(PKG) >.cache/after.txt
	@git worktree remove --force .cache/compare
	go tool benchstat .cache/before.txt .cache/after.txt

generate: ## go generate, then show the diff
	go generate ./...
	git --no-pager diff --stat

cover: ## which statements tests reach, package by package: .cache/cover.html
	@mkdir -p .cache
	go test -coverpkg=./... -coverprofile=.cache/cover.out ./...
	go tool cover -html=.cache/cover.out -o .cache/cover.html
	go tool cover -func=.cache/cover.out | tail -1

# The rivals that Debian has speak neither remote write 2.0 nor, Prometheus, line protocol: such columns stand alone.
load: build ## CPU per sample against the rivals that are installed; HOSTS= SCRAPES= REPEAT=
	go build -o bin/loadgen ./cmd/loadgen
	bin/loadgen -protocol rw1 -servers spillway,victoriametrics,prometheus -hosts $(HOSTS) -scrapes $(SCRAPES) -repeat $(REPEAT)
	bin/loadgen -protocol influx -servers spillway,victoriametrics -hosts $(HOSTS) -scrapes $(SCRAPES) -repeat $(REPEAT)
	bin/loadgen -protocol rw2 -servers spillway -hosts $(HOSTS) -scrapes $(SCRAPES) -repeat $(REPEAT)

bench-query: build etcd ## what dashboards ask, beside the rivals that are installed, and of a cluster beside one process; HOURS=
	go build -o bin/benchquery ./cmd/benchquery
	bin/benchquery -servers spillway,prometheus,victoriametrics -hours $(HOURS)
	SPILLWAY_TABLES_REPLICAS=1 bin/benchquery -servers spillway-cluster,spillway -hours $(HOURS)

ARCHES ?= $(shell go env GOARCH)

package: ## deb and rpm in bin/packages; ARCHES="amd64 arm64". nfpm comes from the Go module proxy
	docker/package/build.sh $(VERSION) $(ARCHES)

test-package: ## install the deb and the rpm as an older version, run the service, upgrade and remove it; skipped without dpkg or root
	docker/package/test.sh

# Skipped where the modules of Helm, Kubernetes and Compose cannot be had: they are no part of the product.
test-helm: ## the Helm chart: it lints, what it renders is what Kubernetes takes, and the program takes its settings; the compose files, by Compose's library; skipped without the modules
	@why=$$(cd docker/check && go mod download 2>&1) || { echo "$$why"; echo "make test-helm: SKIPPED: the modules of docker/check cannot be had, the reason stands above"; exit 0; }; \
	set -ex; $(BUILD_VET); cd docker/check; $(RUN_VET) ./...; test -z "$$(gofmt -l .)"; go mod tidy -diff; $(TEST) -count=1 -timeout=$(LIMIT) ./...

release: ## packages and programs for amd64 and arm64, with a bill of materials (CycloneDX) each and checksums, in bin/packages
	docker/package/release.sh $(VERSION) amd64 arm64

rivals: ## install the servers that load compares with, by apt-get; needs root
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends victoria-metrics prometheus

page: ## build the page at / again, gateway/ui/dist from gateway/ui/web; needs node 20.19 or later and npm
	cd gateway/ui/web && npm ci --silent && npm run --silent build

page-check: ## the committed page is what its sources make; skipped where there is no npm, or a node older than 20.19
	@command -v npm >/dev/null || { echo "make page-check: SKIPPED: there is no npm"; exit 0; }; \
	node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' || { echo "make page-check: SKIPPED: node $$(node --version) is older than 20.19"; exit 0; }; \
	set -e; $(MAKE) --no-print-directory page; \
	git --no-pager diff --exit-code --stat -- gateway/ui/dist || { echo "gateway/ui/dist is not what gateway/ui/web makes: run make page and commit"; exit 1; }; \
	[ -z "$$(git ls-files --others gateway/ui/dist)" ] || { echo "gateway/ui/dist has files that are not committed"; exit 1; }

test-browser: build etcd ## the page in a headless Chromium before real processes, with pictures in .cache/page; PAGE_CLUSTER=0 leaves the cluster out
	go build -o bin/cluster ./cmd/cluster
	@gateway/ui/web/test/run.sh

clean: ## what was built and measured; clients in .cache/bin and data in ./spillway-data stay
	rm -rf bin .cache/compare .cache/*.txt .cache/cover.*

attack: build ## hostile requests of every kind against one process, while a bystander writes and reads; MEMORY=512MiB FOR=5s ONLY=queries/ ARGS=-latency
	go build -o bin/attack ./cmd/attack
	bin/attack -bin bin/spillway -memory $(MEMORY) -for $(FOR) -only '$(ONLY)' $(ARGS)

overload: build ## three times what one process takes, by three protocols, beside slow readers; MEMORY= FOR=5s GOODPUT=0.9, the part of its capacity that it still takes; LATENCY= judges no latency; ARGS="-server-cpus 0,1"
	go build -o bin/attack ./cmd/attack
	bin/attack -bin bin/spillway -memory $(MEMORY) -for $(FOR) -only '^overload/' -goodput $(GOODPUT) $(LATENCY) $(ARGS)

etcd:
	CGO_ENABLED=0 go build -trimpath -o bin/etcd ./cmd/etcd

cluster: build etcd ## etcd, storage servers and gateways on this machine, to try out; CLUSTER_STORAGE=3 CLUSTER_GATEWAYS=2 CLUSTER_PORT=28600 CLUSTER_ARGS=-h
	go build -o bin/cluster ./cmd/cluster
	@bin/cluster -bin bin/spillway -dir $${CLUSTER_DIR:-.cache/cluster} -storage $${CLUSTER_STORAGE:-3} -gateways $${CLUSTER_GATEWAYS:-2} -etcd $${CLUSTER_ETCD:-1} -port $${CLUSTER_PORT:-28600} $${CLUSTER_ARGS:-}

demo: build etcd ## a cluster as above, with a load by line protocol, remote write and Kafka, and a line every 10 s that compares smearing with none; DEMO_RATE=1500 rows/s for each of three tables, DEMO_KAFKA=host:9092
	go build -o bin/cluster ./cmd/cluster
	@bin/cluster -demo -demo-rate $${DEMO_RATE:-1500} -demo-kafka "$${DEMO_KAFKA:-}" -bin bin/spillway -dir $${CLUSTER_DIR:-.cache/demo} -port $${CLUSTER_PORT:-28600} $${CLUSTER_ARGS:-}

test-cluster: build etcd ## processes of a cluster killed, paused, cut off, left without etcd, upgraded from an earlier build and rolled back; PREVIOUS=commit CLUSTER_KILLS=4 CLUSTER_PAUSES=2 CLUSTER_ETCD_AWAY=15s CLUSTER_STEADY=12s (4s to 1m by default) CLUSTER_DROPS=3 CLUSTER_TXNS=100 CLUSTER_SPLIT_AWAY=8s CLUSTERS=8 at once
	@$(call has,./cmd/clustertest,TestCluster)
	@$(call has,./cmd/cluster,TestCluster)
	.ci/previous bin/spillway-previous $(PREVIOUS)
	CLUSTER=1 CLUSTER_BIN=$(CURDIR)/bin/spillway CLUSTER_PREVIOUS=$(CURDIR)/bin/spillway-previous $(TEST) -count=1 -v -timeout=60m -parallel=$(CLUSTERS) -run 'TestCluster' ./cmd/clustertest ./cmd/spillway/process ./cmd/cluster

hang: etcd ## a cluster writes on beside a disk whose fsyncs do not end, which alert, log and doctor name
	@$(call has,./cmd/clustertest,ClusterWritesGoOnBesideADiskThatHangs$$)
	.ci/faults bin/spillway-faults $(VERSION)
	CLUSTER=1 CHAOS_FAULTS=1 CLUSTER_BIN=$(CURDIR)/bin/spillway-faults $(TEST) -count=1 -v -timeout=30m -run 'ClusterWritesGoOnBesideADiskThatHangs$$' ./cmd/clustertest

chaos: etcd ## a cluster with three copies of every row is killed, frozen, cut, wiped and corrupted, its fsyncs fail and its clocks jump, blow after blow by a seed, under load, while partitions are split, merged and moved and servers drained: no acked row is lost, no copy differs; N=20 SEED= CHAOS_STORAGE=4 CHAOS_BLOWS=kill,pause,… CHAOS_CHANGES=none,split,… CHAOS_LOGS=dir. As root it cuts links and fills disks, too
	@$(call has,./cmd/clustertest,ChaosLosesNothingAcked$$)
	@$(call has,./cmd/clustertest,ClusterGatewayWithAWrongClock$$)
	@$(call has,./cmd/clustertest,ClusterAFencedStoreAlerts$$)
	@$(call has,./cmd/clustertest,ClusterAlertsOfClocksAndASlowDiskFire$$)
	.ci/faults bin/spillway-faults $(VERSION)
	CHAOS_N=$${N:-20} $(if $(filter-out 0,$(SEED)),TEST_SEED=$(SEED)) CLUSTER=1 CHAOS_FAULTS=1 CLUSTER_BIN=$(CURDIR)/bin/spillway-faults $(TEST) -count=1 -v -timeout=6h -run 'ChaosLosesNothingAcked$$|ClusterGatewayWithAWrongClock$$|ClusterAFencedStoreAlerts$$|ClusterAlertsOfClocksAndASlowDiskFire$$' ./cmd/clustertest

test-s3: ## backups in a real S3 server that checks signatures: versitygw, built into .cache; S3_SERVER=path of another build of it
	@test -n "$${S3_SERVER:-}" || GOBIN=$(CURDIR)/.cache/s3 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 || { echo "make test-s3: SKIPPED: versitygw cannot be built here, the reason stands above"; exit 0; }; \
	S3_SERVER=$${S3_SERVER:-$(CURDIR)/.cache/s3/versitygw} $(TEST) -count=1 -timeout=60m -v -run ChecksSignatures ./storage/backup/s3

test-docker: ## the image and the services of docker/, in an engine of its own (dockerd in namespaces): built, started by the README's commands, stopped, killed; skipped without root or an engine. DOCKER_WORK=dir keeps what was built
	@cmd/clienttest/install.sh compose || { echo "make test-docker: SKIPPED: docker compose cannot be built here, the reason stands above"; exit 0; }; \
	set -x; cmd/dockertest/engine.sh sh -c 'timeout --kill-after=10 15m cmd/dockertest/images.sh && $(VET) -tags docker ./cmd/dockertest && $(TEST) -tags docker -count=1 -timeout=20m -v ./cmd/dockertest'

test-kafka: ## a real Apache Kafka and kills of its consumers, where Java and Maven are; KAFKA_ROWS=1000000 KAFKA_KILL_EVERY=4s
	@cmd/clienttest/install.sh kafka || { echo "make test-kafka: SKIPPED: no Kafka to test with, the reason stands above"; exit 0; }; \
	$(call has,-tags kafka ./cmd/standalonetest,RealKafka); set -x; \
	KAFKA_LIBS=$${KAFKA_LIBS:-$(CURDIR)/.cache/kafka/libs} $(TEST) -tags kafka -count=1 -timeout=30m -v -run RealKafka ./cmd/standalonetest
