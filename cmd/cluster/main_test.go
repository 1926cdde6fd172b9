package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// TestMain is also the processes that are supervised: this program with "serve" and an address, or with "end".
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		os.Exit(1)
	case len(os.Args) == 2 && os.Args[1] == "end":
		os.Exit(7)
	}
	m.Run()
}

// supervised is a cluster of one process under supervise.
type supervised struct {
	*processes.Process
	said  chan string
	ended chan error
}

func supervisedProcess(t *testing.T, args ...string) *supervised {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &supervised{said: make(chan string, 100), ended: make(chan error, 1)}
	s.Process = &processes.Process{Name: "s1", Line: append([]string{os.Args[0]}, args...), Ready: "http://" + args[len(args)-1]}
	if args[0] == "serve" {
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
	} else if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.ended <- supervise(ctx, &processes.Cluster{Storage: []*processes.Process{s.Process}}, time.Millisecond, func(format string, args ...any) { s.said <- fmt.Sprintf(format, args...) })
	}()
	t.Cleanup(func() {
		stop()
		<-over
		s.Kill()
	})
	return s
}

// next returns the next message.
func (s *supervised) next(t *testing.T) string {
	t.Helper()
	select {
	case text := <-s.said:
		return text
	case err := <-s.ended:
		t.Fatalf("supervise ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("nothing is said")
	}
	return ""
}

// TestAProcessThatWasKilledServesAgain, as often as it is killed: each life was begun by supervise.
func TestAProcessThatWasKilledServesAgain(t *testing.T) {
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	s := supervisedProcess(t, "serve", addr)
	pid := s.PID()
	for range endsMax - 1 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if text := s.next(t); !strings.Contains(text, "s1 ended: signal: killed; it starts again in 1ms") {
			t.Errorf("at the end it said %q", text)
		}
		text, was := s.next(t), pid
		if _, number, _ := strings.Cut(text, ", as process "); !strings.HasPrefix(text, "s1 serves again after ") {
			t.Errorf("it said %q", text)
		} else if _, err := fmt.Sscan(number, &pid); err != nil || pid == was {
			t.Fatalf("process %d follows %d: %q %v", pid, was, text, err)
		}
		resp, err := http.Get("http://" + addr)
		if err != nil {
			t.Fatalf("it serves again, and does not answer: %v", err)
		}
		_ = resp.Body.Close()
	}
}

// TestAProcessThatKeepsEndingEndsTheCluster, instead of being started without end.
func TestAProcessThatKeepsEndingEndsTheCluster(t *testing.T) {
	s := supervisedProcess(t, "end")
	select {
	case err := <-s.ended:
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("s1 ended %d times in a row", endsMax)) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	for range endsMax - 1 {
		if text := <-s.said; !strings.Contains(text, "s1 ended: exit status 7") {
			t.Errorf("it said %q", text)
		}
	}
}
