package kafkatest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Real starts one node of Apache Kafka in KRaft mode from the jars in the folder libs. It needs java.
func Real(t testing.TB, libs string) *Cluster {
	t.Helper()
	n := newNode(t, libs)
	n.start()
	return connect(t, n.plain)
}

// Doors are the guarded listeners of a broker, host:port.
type Doors struct {
	SASL      string // a password, nothing encrypted
	SASLTLS   string // a password, over TLS
	MutualTLS string // TLS, and a certificate of the client
	Certificates
}

// RealGuarded is Real with doors beside the open one: one user, with one password for PLAIN, SCRAM-SHA-256 and
// SCRAM-SHA-512.
func RealGuarded(t testing.TB, libs, user, password string) (*Cluster, Doors) {
	t.Helper()
	n := newNode(t, libs)
	d := Doors{SASL: freeAddr(t), SASLTLS: freeAddr(t), MutualTLS: freeAddr(t), Certificates: newCertificates(t)}
	n.listen("SASL_PLAINTEXT", d.SASL)
	n.listen("SASL_SSL", d.SASLTLS)
	n.listen("SSL", d.MutualTLS)
	n.set("listener.name.ssl.ssl.client.auth", "required")
	n.set("ssl.keystore.type", "PEM")
	n.set("ssl.keystore.location", d.server)
	n.set("ssl.truststore.type", "PEM")
	n.set("ssl.truststore.location", d.CA)
	n.set("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
	const module = "org.apache.kafka.common.security."
	for _, door := range []string{"sasl_plaintext", "sasl_ssl"} {
		n.set("listener.name."+door+".plain.sasl.jaas.config", fmt.Sprintf("%splain.PlainLoginModule required user_%s=%q;", module, user, password))
		for _, scram := range []string{"scram-sha-256", "scram-sha-512"} {
			n.set("listener.name."+door+"."+scram+".sasl.jaas.config", module+"scram.ScramLoginModule required;")
		}
	}
	for _, scram := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		n.format = append(n.format, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", scram, user, password))
	}
	n.start()
	return connect(t, n.plain), d
}

// node is a broker that is its own controller.
type node struct {
	t         testing.TB
	libs, dir string
	plain     string // the open door

	listeners, protocols []string
	settings             strings.Builder
	format               []string // further words for the storage tool
}

func newNode(t testing.TB, libs string) *node {
	n := &node{t: t, libs: libs, dir: t.TempDir(), plain: freeAddr(t)}
	controller := freeAddr(t)
	n.listen("PLAINTEXT", n.plain)
	n.settings.WriteString(`process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
`)
	n.set("controller.quorum.voters", "1@"+controller)
	n.set("log.dirs", filepath.Join(n.dir, "log"))
	n.listeners, n.protocols = append(n.listeners, "CONTROLLER://"+controller), append(n.protocols, "CONTROLLER:PLAINTEXT")
	return n
}

func (n *node) set(name, value string) { fmt.Fprintf(&n.settings, "%s=%s\n", name, value) }

// listen opens a door that is named like its protocol.
func (n *node) listen(protocol, addr string) {
	n.listeners, n.protocols = append(n.listeners, protocol+"://"+addr), append(n.protocols, protocol+":"+protocol)
}

// start runs the node until the test ends.
func (n *node) start() {
	n.t.Helper()
	n.set("listeners", strings.Join(n.listeners, ","))
	n.set("listener.security.protocol.map", strings.Join(n.protocols, ","))
	conf := filepath.Join(n.dir, "server.properties")
	if err := os.WriteFile(conf, []byte(n.settings.String()), 0o600); err != nil {
		n.t.Fatal(err)
	}
	format := append([]string{"format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", conf}, n.format...)
	if out, err := n.java("kafka.tools.StorageTool", format...).CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	server := n.java("kafka.Kafka", conf)
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if n.t.Failed() {
			n.t.Logf("Kafka said:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
}

// java runs a class. Tiered compilation stops at its first tier: a broker of a test does not live long enough for more.
func (n *node) java(class string, args ...string) *exec.Cmd {
	line := append([]string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(n.libs, "*"), class}, args...)
	return exec.Command("java", line...)
}
