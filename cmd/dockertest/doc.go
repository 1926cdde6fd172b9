// Package dockertest tests Spillway in containers: the image that docker/Dockerfile builds, and the services of docker/compose.yaml and
// docker/cluster.yaml, started by the commands that the README and these files show, in an engine of its own.
//
// It exists because a file that a parser accepts can still build nothing, mount nothing and stop nothing: owners of volumes, secrets, published
// ports, health checks, signals and restarts are the engine's.
//
//	engine.sh ─▶ dockerd in namespaces ─▶ images.sh: images, pulled or made here ─▶ go test -tags docker
//	                     │                                                               │
//	                     └─ Prometheus, Telegraf ─▶ spillway ◀── writes, queries, KILL ──┘
//
// Everything is in tests behind the build tag "docker", which need the engine around them:
//
//	make test-docker
//
// Invariant it looks after from outside: I1 (acked rows are there after a stop, a down, and a KILL of the container's process).
package dockertest
