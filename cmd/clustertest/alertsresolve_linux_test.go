package clustertest

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// TestClusterAlertsOfAProcessFireAndResolve harms real processes as TestClusterAlertsOfAProcessFire does, follows the runbook, and sees the alerts end.
func TestClusterAlertsOfAProcessFireAndResolve(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	for name, harm := range map[string]func(*testing.T){
		"Disk": aDiskThatFillsUpAlerts, "Retention": heldRetentionAlerts, "Memory": refusedMemoryAlerts, "Pairs": pairsThatFlapAlert,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); harm(t) })
	}
}

// aDiskThatFillsUpAlerts fills the disk of a process that reads from Kafka, up to the reserve: its brokers answer, and nothing is committed.
func aDiskThatFillsUpAlerts(t *testing.T) {
	kafka := kafkatest.Fake(t)
	kafka.Create(1, "rows")
	d := processtest.NewOf(t, program(t), "SPILLWAY_STORAGE_FREE_BYTES_MIN=16MiB",
		fmt.Sprintf("SPILLWAY_KAFKA=[{brokers: [%q], group: g, topics: [{name: rows}]}]", kafka.Addrs[0]))
	disk := processtest.NewSmallDisk(t, d.Dir, 64<<20)
	d.In = disk.In
	d.Start()
	p := newWatcher(t, map[string]string{"a": d.Addr})
	p.sooner("SpillwayKafkaStuck", "> 300", "> 3")
	n := 0
	record := func() {
		n++
		kafka.Produce("rows", fmt.Sprintf("m v=%d %d", n, time.Now().UnixNano()))
	}
	committed := func() bool { return kafka.Lag("g", "rows", 1) == 0 }
	record()
	soon(d, "a record is committed", committed)
	p.quiet("SpillwayDiskFillsUp", "SpillwayKafkaStuck", "SpillwayKafkaAway", "SpillwayStoreReadOnly")
	p.scrape()
	disk.Use(t, 8<<20)
	p.fires("SpillwayDiskFillsUp", nil, `instance="a"`)
	p.fires("SpillwayStoreReadOnly", nil, `instance="a"`)
	record()
	p.fires("SpillwayKafkaStuck", nil, `instance="a"`, `cluster="g"`)
	p.ends("SpillwayKafkaAway")
	says(t, d, []string{"kafka", "status", "--url=http://" + d.Addr}, 0, kafka.Addrs[0], "make room")

	disk.Clear(t)
	p.ends("SpillwayStoreReadOnly")
	p.ends("SpillwayKafkaStuck")
	p.ends("SpillwayDiskFillsUp")
	soon(d, "all records are committed", committed)
}

// heldRetentionAlerts has rows of twelve days, and a client shortens how long they are kept to two.
func heldRetentionAlerts(t *testing.T) {
	d, p := alone(t, "")
	admin := withAdmin(d)
	d.More = append(d.More, "--enable-delete")
	d.Kill()
	d.Start()
	d.Must(0, "table", "create", "old", "--partition-width=1d", "--url=http://"+admin)
	today := time.Now()
	for day := range 12 {
		soon(d, "rows are acked", func() bool {
			status, _, err := processtest.PutLine(d, "old", fmt.Sprintf("m v=1 %d", today.AddDate(0, 0, -day).UnixMilli()))
			return err == nil && status == http.StatusNoContent
		})
	}
	p.quiet("SpillwayRetentionHeld")
	q := url.Values{"q": {"ALTER RETENTION POLICY autogen ON old DURATION 2d"}}
	status, text, err := d.Do(http.MethodPost, "/query?"+q.Encode(), http.Header{}, nil)
	if err != nil || status != http.StatusOK || strings.Contains(string(text), "error") {
		t.Fatalf("%d %s %v", status, text, err)
	}
	p.fires("SpillwayRetentionHeld", nil, `instance="a"`)
	says(t, d, []string{"doctor", "--url=http://" + d.Addr}, 1, "of table old until a person confirms the clock", " of the 12 slices of time")
	d.Stop()
	d.More = append(d.More, "--retention.confirmed="+time.Now().AddDate(0, 0, 2).Format(time.DateOnly))
	d.Start()
	p.ends("SpillwayRetentionHeld")
	soon(d, "the old rows are gone", func() bool {
		out, _, _ := d.Run("table", "list", "--url=http://"+admin)
		return strings.Contains(out, "old") && !strings.Contains(out, "  12  ")
	})
}

// refusedMemoryAlerts asks for more than the memory of a small process holds.
func refusedMemoryAlerts(t *testing.T) {
	d, p := alone(t, "", "SPILLWAY_STORAGE_MEMORY_BYTES=320MiB")
	var lines strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&lines, "m,i=%d v=1 %d\n", i, time.Now().UnixMilli())
	}
	acked(d, lines.String())
	p.quiet("SpillwayMemoryRefused")
	q := url.Values{"query": {"last_over_time(m_v[4h])"}, "step": {"1"}, "start": {fmt.Sprint(time.Now().Unix())}, "end": {fmt.Sprint(time.Now().Unix() + 10_000)}}
	p.fires("SpillwayMemoryRefused", func() { _, _, _ = d.Get("/api/v1/query_range?" + q.Encode()) }, `instance="a"`, `account="queries"`)
	p.endsLater(11*time.Minute, "SpillwayMemoryRefused")
}

// pairsThatFlapAlert sends by the replicas of a pair in turns, each for longer than the other may be silent; then by one of them alone.
func pairsThatFlapAlert(t *testing.T) {
	d, p := alone(t, "", "SPILLWAY_HA_ENABLED=true", "SPILLWAY_HA_UPDATE_INTERVAL=1s", "SPILLWAY_HA_FAILOVER_TIMEOUT=2s")
	p.sooner("SpillwayPairsWithoutSpare", "> 600", "> 4")
	send := func(replica string) {
		acked(d, fmt.Sprintf("m,cluster=x,__replica__=%s v=1 %d", replica, time.Now().UnixMilli()))
	}
	send("a")
	send("b")
	p.quiet("SpillwayPairsFlap", "SpillwayPairsWithoutSpare")
	turn := time.Now()
	replica := "b"
	p.fires("SpillwayPairsFlap", func() {
		if time.Since(turn) > 2500*time.Millisecond {
			turn, replica = time.Now(), map[string]string{"a": "b", "b": "a"}[replica]
		}
		send(replica)
	}, `instance="a"`)
	_, text, err := d.Get("/api/v1/status/ha")
	if err != nil || !strings.Contains(string(text), `"elected":"`) {
		t.Errorf("the status of pairs: %s %v", text, err)
	}
	p.fires("SpillwayPairsWithoutSpare", func() { send(replica) }, `table="default"`, `cluster="x"`)
	p.endsLater(16*time.Minute, "SpillwayPairsFlap")
	send(map[string]string{"a": "b", "b": "a"}[replica]) // the other one is back
	p.ends("SpillwayPairsWithoutSpare")
}

// says runs a command as a runbook prints it, and wants words in its output.
func says(t *testing.T, d *processtest.Process, line []string, code int, words ...string) {
	t.Helper()
	out, said, ended := d.Run(line...)
	for _, word := range words {
		if ended != code || !strings.Contains(out+said, word) {
			t.Errorf("spillway %s ends with %d, and does not say %q:\n%s%s", strings.Join(line, " "), ended, word, out, said)
		}
	}
}

// TestClusterAlertsOfClocksAndASlowDiskFire sets the clocks of a storage server and of a gateway wrong and right again, and has the fsyncs of another server
// last long for a while.
func TestClusterAlertsOfClocksAndASlowDiskFire(t *testing.T) {
	needsCluster(t)
	if os.Getenv("CHAOS_FAULTS") == "" {
		t.Skip("no clock can be set: the program is not that of .ci/faults; `make chaos` runs this with it")
	}
	t.Parallel()
	dir := t.TempDir()
	file := func(name, fault string) string { return filepath.Join(dir, name+"."+fault) }
	set := func(name string, by time.Duration) {
		t.Helper()
		if err := setClock(file(name, "clock"), by); err != nil {
			t.Fatal(err)
		}
	}
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, EnvOf: func(name string) []string {
		set(name, 0)
		return []string{"FAULT_CLOCK=" + file(name, "clock"), "FAULT_SYNC=" + file(name, "sync")}
	}})
	p := c.watched()
	c.table("three", 24*time.Hour, 3)
	row := func() {
		_, _, _ = processtest.PutLine(c.doors[0], "three", fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	}
	c.acks("three", fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	all := []string{"SpillwayClockIsOff", "SpillwayGatewayClockIsWrong", "SpillwaySlowFsync"}
	p.quiet(all...)

	set("s2", -700*time.Millisecond) // less than what makes a server hand over
	set("g1", 3*time.Hour)
	c.must(os.WriteFile(file("s3", "slow"), []byte("700ms"), 0o600))
	c.must(os.Rename(file("s3", "slow"), file("s3", "sync"))) // while it is there without a duration fsyncs fail
	p.fires("SpillwayClockIsOff", row, `instance="s2"`)
	p.only("SpillwayClockIsOff", `instance="s2"`)
	p.fires("SpillwayGatewayClockIsWrong", row, `instance="g1"`)
	p.only("SpillwayGatewayClockIsWrong", `instance="g1"`)
	p.fires("SpillwaySlowFsync", row, `instance="s3"`)

	set("s2", 0)
	set("g1", 0)
	c.must(os.Remove(file("s3", "sync")))
	p.ends("SpillwayClockIsOff")
	p.ends("SpillwayGatewayClockIsWrong")
	p.endsLater(6*time.Minute, "SpillwaySlowFsync")
}
