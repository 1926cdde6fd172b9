package clustertest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterAlertsOfAProcessFire harms real processes, each alone, and evaluates the rules over their real metrics: a rule about a metric that is never as it expects, or is gone before it is scraped,
// passes tests with invented samples.
func TestClusterAlertsOfAProcessFire(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	for name, harm := range map[string]func(*testing.T){
		"Damaged": aDamagedSegmentAlerts, "LostAndFound": aStrayFileAlerts, "Full": aFullDiskAlerts, "Refused": refusedWritesAlert, "Reload": aBrokenFileAlerts, "Killed": aDeadProcessAlerts,
		"Backups": failedAndOldBackupsAlert, "Certificate": aCertificateThatExpiresAlerts, "Kafka": brokersThatAreAwayAlert,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); harm(t) })
	}
}

func aDamagedSegmentAlerts(t *testing.T) {
	d, p := alone(t, "")
	admin := withAdmin(d)
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "m,i=%d v=1 %d\n", i, time.Now().UnixMilli())
	}
	acked(d, lines.String())
	flushed(d)
	query := func() { _, _, _ = d.Get("/api/v1/query?query=count(m_v)") }
	query()
	p.quiet("SpillwayPartitionDamaged", "SpillwayQueriesFail")
	d.Kill()
	eachFile(t, d.Dir, ".seg", func(path string, size int64) {
		if err := os.Truncate(path, size*2/3); err != nil {
			t.Fatal(err)
		}
	})
	d.Start()
	p.fires("SpillwayPartitionDamaged", query, `instance="a"`)
	p.fires("SpillwayQueriesFail", query, `instance="a"`)
	backUp(d, admin, filepath.Join(t.TempDir(), "backups"), 1)
	p.fires("SpillwayBackupFails", nil, `instance="a"`, `outcome="incomplete"`)
}

// withAdmin has a process listen for administrators from its next start on.
func withAdmin(d *processtest.Process) (addr string) {
	d.T.Helper()
	addr, err := processes.FreeAddr()
	if err != nil {
		d.T.Fatal(err)
	}
	d.More = append(d.More, "--admin.listen="+addr)
	return addr
}

// backUp runs the command, which ends with a code.
func backUp(d *processtest.Process, admin, to string, code int) {
	d.T.Helper()
	d.Must(code, "backup", "--to="+to, "--url=http://"+admin)
}

func failedAndOldBackupsAlert(t *testing.T) {
	d, p := alone(t, "")
	admin := withAdmin(d)
	d.Kill()
	d.Start()
	acked(d, fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	p.quiet("SpillwayBackupFails", "SpillwayBackupIsOld")
	p.scrape()
	p.quietLater(40*time.Hour, "SpillwayBackupIsOld") // none was ever made
	backUp(d, admin, filepath.Join(t.TempDir(), "backups"), 0)
	p.quiet("SpillwayBackupFails", "SpillwayBackupIsOld")
	backUp(d, admin, "/dev/null", 1)
	p.fires("SpillwayBackupFails", nil, `instance="a"`, `outcome="failed"`)
	d.Kill()
	d.Start()
	p.scrape() // this process knows of no backup
	p.quietLater(35*time.Hour, "SpillwayBackupIsOld")
	p.firesLater(37*time.Hour, "SpillwayBackupIsOld")
}

// brokersThatAreAwayAlert has a process read from brokers that do not run. The alert on the age of commits does not fire: nothing was read that
// could be committed.
func brokersThatAreAwayAlert(t *testing.T) {
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	_, p := alone(t, "", fmt.Sprintf("SPILLWAY_KAFKA=[{brokers: [%q], group: g, topics: [{name: rows}]}]", addr))
	p.fires("SpillwayKafkaAway", nil, `instance="a"`, `cluster="`)
	p.quiet("SpillwayKafkaStuck")
}

// aCertificateThatExpiresAlerts has the port for HTTP use one for 60 days, then one for ten.
func aCertificateThatExpiresAlerts(t *testing.T) {
	dir := t.TempDir()
	web := filepath.Join(dir, "web.yaml")
	file := fmt.Sprintf("tls_server_config: {cert_file: %q, key_file: %q}\n", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err := os.WriteFile(web, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	d := processtest.NewOf(t, program(t), "SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_HTTP_WEB_CONFIG_FILE="+web)
	d.More = []string{"--admin.listen=" + addr}
	p := newWatcher(t, map[string]string{"a": addr})
	start := func(days int) {
		writeCertificate(t, dir, time.Now().AddDate(0, 0, days))
		d.Spawn()
		soon(d, "it has metrics", func() bool { _, err := scraped(p.targets["a"]); return err == nil })
	}
	start(60)
	p.quiet("SpillwayCertificateExpires")
	d.Kill()
	start(10)
	p.fires("SpillwayCertificateExpires", nil, `instance="a"`)
}

// writeCertificate writes cert.pem and key.pem for 127.0.0.1.
func writeCertificate(t *testing.T, dir string, until time.Time) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, public, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// eachFile calls f for each file below a directory with this suffix, and fails the test if there is none.
func eachFile(t *testing.T, dir, suffix string, f func(path string, size int64)) {
	t.Helper()
	n := 0
	if err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && strings.HasSuffix(path, suffix) && info.Mode().IsRegular() {
			n++
			f(path, info.Size())
		}
		return err
	}); err != nil || n == 0 {
		t.Fatalf("%d files %s in %s: %v", n, suffix, dir, err)
	}
}

func aStrayFileAlerts(t *testing.T) {
	d, p := alone(t, "")
	acked(d, fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	flushed(d)
	p.quiet("SpillwayLostAndFound")
	d.Kill()
	stray := filepath.Join(d.Dir, "data", "segments", "00000000000000ca") // of no placement that the catalogue knows
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stray, "1-1.seg"), []byte("of a store before"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Start()
	p.fires("SpillwayLostAndFound", nil, `instance="a"`)
}

// aFullDiskAlerts has a process want more room than there is: it is full for it.
func aFullDiskAlerts(t *testing.T) {
	d, p := alone(t, "")
	line := func() string { return fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()) }
	acked(d, line())
	p.quiet("SpillwayStoreReadOnly", "SpillwayRefusesWrites", "SpillwayDown")
	d.Kill()
	d.Env = append(d.Env, "SPILLWAY_STORAGE_FREE_BYTES_MIN=4000000GiB")
	d.Start()
	p.fires("SpillwayStoreReadOnly", nil, `instance="a"`)
	p.fires("SpillwayRefusesWrites", func() { put(d, line()) }, `instance="a"`)
}

func refusedWritesAlert(t *testing.T) {
	d, p := alone(t, "limits: {tables: {small: {samples_per_second: 1, samples_burst: 5}}, defaults: {past_max: 1d}}")
	old := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "m v=1 %d\n", time.Now().Add(-50*time.Hour).UnixMilli()+int64(i))
		}
		return b.String()
	}
	small := func() {
		_, _, _ = processtest.PutLine(d, "small", fmt.Sprintf("m a=1,b=1,c=1,d=1 %d", time.Now().UnixMilli()))
	}
	small()
	put(d, old(1))
	p.quiet("SpillwayRefusesRows", "SpillwayTableLimited", "SpillwayRefusesWrites", "SpillwayMisbehaves")
	p.fires("SpillwayRefusesRows", func() { put(d, old(5000)) }, `instance="a"`, `reason="`)
	p.fires("SpillwayTableLimited", small, `table="small"`, `limit="samples_per_second"`)
	p.fires("SpillwayRefusesWrites", small, `instance="a"`)
}

func aBrokenFileAlerts(t *testing.T) {
	web := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(web, []byte("http_server_config: {headers: {X-Frame-Options: deny}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, p := alone(t, "limits: {defaults: {request_bytes: 1MiB}}", "SPILLWAY_HTTP_WEB_CONFIG_FILE="+web)
	p.quiet("SpillwayReloadFailed", "SpillwaySettingsReloadFailed")
	for _, env := range d.Env {
		if name, ok := strings.CutPrefix(env, "SPILLWAY_CONFIG_FILE="); ok {
			if err := os.WriteFile(name, []byte("storage: {no_such_key: 1}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(web, []byte("nonsense: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup := func() {
		if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangup()
	p.fires("SpillwaySettingsReloadFailed", nil, `instance="a"`)
	p.fires("SpillwayReloadFailed", nil, `instance="a"`)
}

func aDeadProcessAlerts(t *testing.T) {
	d, p := alone(t, "")
	p.quiet("SpillwayDown")
	d.Kill()
	p.fires("SpillwayDown", nil, `instance="a"`)
}
