package rival

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// ErrNotInstalled means that the program is not installed here.
var ErrNotInstalled = errors.New("not installed")

// Server is a server under test: a process on an empty directory, several that are a cluster, or one that runs already.
type Server struct {
	Name    string
	URL     string
	Admin   string // pprof, if it has one; of a cluster that of the gateway at URL
	dir     string
	keep    bool               // leave dir behind
	cmd     *exec.Cmd          // nil: there is not one process
	cluster *processes.Cluster // nil: it is none
	pids    []int              // processes of the cluster; CPU figures add up theirs
}

// freePorts asks the system for free ports: two measurements on one machine must not reach each other's server.
func freePorts() (port, adminPort string, err error) {
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer l.Close()
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
	}
	return ports[0], ports[1], nil
}

// Start starts a fresh server on an empty directory and waits until it answers. Names are spillway (spillway is the path
// of its program), Cluster, victoriametrics, prometheus, and name=url for a server that runs already; name=url#pid+pid counts the CPU time of these processes.
func Start(name, spillway string) (*Server, error) {
	if name, url, ok := strings.Cut(name, "="); ok {
		return running(name, url)
	}
	dir, err := os.MkdirTemp("", "loadgen-"+name+"-")
	if err != nil {
		return nil, err
	}
	return start(name, spillway, dir, false)
}

// running is a server that runs already, of these processes: url#pid+pid.
func running(name, url string) (*Server, error) {
	url, list, ok := strings.Cut(url, "#")
	t := &Server{Name: name, URL: url}
	if !ok {
		return t, nil
	}
	for text := range strings.SplitSeq(list, "+") {
		pid, err := strconv.Atoi(text)
		if err != nil || pid < 1 {
			return nil, fmt.Errorf("%q is not the number of a process", text)
		}
		t.pids = append(t.pids, pid)
	}
	if _, err := t.cpuTime(); err != nil {
		return nil, err
	}
	return t, nil
}

// StartIn is Start on an existing directory, with the rows of an earlier run; Stop does not remove it.
func StartIn(name, spillway, dir string) (*Server, error) { return start(name, spillway, dir, true) }

func start(name, spillway, dir string, keep bool) (*Server, error) {
	if name == Cluster {
		t, err := startCluster(name, spillway, dir, keep)
		if err != nil && !keep {
			_ = os.RemoveAll(dir)
		}
		return t, err
	}
	port, adminPort, err := freePorts()
	if err != nil {
		return nil, err
	}
	t := &Server{Name: name, URL: "http://127.0.0.1:" + port, dir: dir, keep: keep}
	var bin string
	var args []string
	ready := "/-/ready"
	switch name {
	case "spillway":
		bin = spillway
		t.Admin = "http://127.0.0.1:" + adminPort
		args = []string{"standalone", "--data-dir", dir, "--http.listen", "127.0.0.1:" + port, "--admin.listen", "127.0.0.1:" + adminPort, "--log.level", "warn"}
	case "victoriametrics":
		bin = firstInPath("victoria-metrics", "victoria-metrics-prod")
		ready = "/health"
		args = []string{"-storageDataPath=" + dir, "-httpListenAddr=127.0.0.1:" + port, "-retentionPeriod=10y", "-loggerLevel=WARN", "-influxSkipSingleField"}
	case "prometheus":
		bin = firstInPath("prometheus")
		conf := filepath.Join(dir, "prometheus.yml")
		if err := os.WriteFile(conf, []byte("global: {}\nstorage: {tsdb: {out_of_order_time_window: 1h}}\n"), 0o600); err != nil {
			return nil, err
		}
		args = []string{"--config.file=" + conf, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.enable-remote-write-receiver", "--web.listen-address=127.0.0.1:" + port, "--log.level=error"}
	default:
		return nil, fmt.Errorf("no such server: %s", name)
	}
	if _, err := exec.LookPath(bin); err != nil {
		return nil, ErrNotInstalled
	}
	t.cmd = exec.Command(bin, args...)
	t.cmd.Stderr = io.Discard // failures show in the answers
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	t.pids = []int{t.cmd.Process.Pid}
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	tries := 300
	if keep {
		tries *= 10 // the server first reads the logs of the earlier run
	}
	for range tries {
		if resp, err := client.Get(t.URL + ready); err == nil {
			resp.Body.Close()
			if resp.StatusCode/100 == 2 {
				return t, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Stop()
	return nil, fmt.Errorf("did not become ready within %d s", tries/10)
}

func firstInPath(names ...string) string {
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p
		}
	}
	return names[0]
}

// Stop ends the processes and removes their files.
func (t *Server) Stop() {
	switch {
	case t.cluster != nil:
		t.stopCluster()
	case t.cmd != nil:
		t.stopProcess()
	default:
		return
	}
	if !t.keep {
		_ = os.RemoveAll(t.dir)
	}
}

func (t *Server) stopProcess() {
	_ = t.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = t.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		_ = t.cmd.Process.Kill()
		<-done
	}
}

// Usage is the processes' use of resources so far.
type Usage struct {
	CPU     float64 // user and system, in seconds
	PeakRSS int64
	RSS     int64 // now
	Written int64 // bytes that reached the disk's cache
}

// Usage reads it from /proc; zero for a server that ran already without its processes' numbers.
func (t *Server) Usage() (Usage, error) {
	var u Usage
	cpu, err := t.cpuTime()
	if err != nil {
		return u, err
	}
	u.CPU = cpu.Seconds()
	for _, pid := range t.pids {
		dir := fmt.Sprintf("/proc/%d/", pid)
		u.PeakRSS += procValue(dir+"status", "VmHWM:") * 1024
		u.RSS += procValue(dir+"status", "VmRSS:") * 1024
		u.Written += procValue(dir+"io", "write_bytes:")
	}
	return u, nil
}

// CPUTime is the CPU time of all threads of the processes so far, to the nanosecond; 0 for a server that ran already without its processes' numbers.
func (t *Server) CPUTime() time.Duration {
	d, _ := t.cpuTime() // zero for a process that is gone
	return d
}

func (t *Server) cpuTime() (all time.Duration, err error) {
	const scheduled = 2 // of a process's three clocks the one that counts its threads' running time: clock_getcpuclockid(3)
	for _, pid := range t.pids {
		var at unix.Timespec
		if err := unix.ClockGettime(^int32(pid)<<3|scheduled, &at); err != nil {
			return 0, fmt.Errorf("the CPU clock of %s: %w", t.Name, err)
		}
		all += time.Duration(at.Nano())
	}
	return all, nil
}

func procValue(file, key string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// OnDisk sums the files of the data directory.
func (t *Server) OnDisk() int64 {
	var n int64
	_ = filepath.WalkDir(t.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a file may be removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
