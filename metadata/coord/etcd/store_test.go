package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/coordtest"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestConformance(t *testing.T) {
	_, endpoint := embedded(t, false)
	n := 0
	coordtest.Run(t, func(t *testing.T) coord.Store {
		n++
		return open(t, Settings{Endpoints: []string{endpoint}, Prefix: fmt.Sprint("suite", n)})
	})
}

func TestClustersInOneEtcdDoNotMeet(t *testing.T) {
	_, endpoint := embedded(t, false)
	a := open(t, Settings{Endpoints: []string{endpoint}, Prefix: "a"})
	ab := open(t, Settings{Endpoints: []string{endpoint}, Prefix: "ab"})
	put(t, a, "x", "of a")
	put(t, ab, "x", "of ab")
	rows, _, err := a.List(t.Context(), "")
	if err != nil || len(rows) != 1 || string(rows[0].Value) != "of a" || rows[0].Key != "x" {
		t.Errorf("a holds %v: %v", rows, err)
	}
}

func put(t *testing.T, s coord.Store, key, value string) coord.Revision {
	t.Helper()
	rev, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: key, Value: []byte(value)}})
	if err != nil || !ok {
		t.Fatalf("put %s: %v %v", key, ok, err)
	}
	return rev
}

func TestLongListIsOfOneRevision(t *testing.T) {
	_, endpoint := embedded(t, false)
	s := open(t, Settings{Endpoints: []string{endpoint}})
	const total = 2*pageMax + 100
	for i := 0; i < total; i += 100 {
		var writes []coord.Write
		for j := i; j < i+100; j++ {
			writes = append(writes, coord.Write{Key: fmt.Sprintf("rows/%05d", j)})
		}
		if _, ok, err := s.Commit(t.Context(), nil, writes); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	rows, rev, err := s.List(t.Context(), "rows/")
	if err != nil || len(rows) != total || rev != rows[total-1].Revision {
		t.Fatalf("%d rows at %d: %v", len(rows), rev, err)
	}
	for i, r := range rows {
		if r.Key != fmt.Sprintf("rows/%05d", i) {
			t.Fatalf("row %d is %s", i, r.Key)
		}
	}
}

func TestTooLargeTransactionIsNotRetriedForEver(t *testing.T) {
	_, endpoint := embedded(t, false)
	s := open(t, Settings{Endpoints: []string{endpoint}})
	writes := make([]coord.Write, 200)
	for i := range writes {
		writes[i].Key = fmt.Sprint(i)
	}
	if _, _, err := s.Commit(t.Context(), nil, writes); !fault.Is(err, fault.TooLarge) {
		t.Errorf("200 writes: %v", err)
	}
	if _, _, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "big", Value: make([]byte, 1_600_000)}}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("1.6 MB: %v", err)
	}
}

func TestWatchFromCompactedRevisionSaysSo(t *testing.T) {
	_, endpoint := embedded(t, false)
	s := open(t, Settings{Endpoints: []string{endpoint}})
	first := put(t, s, "a", "1")
	put(t, s, "a", "2")
	last := put(t, s, "a", "3")
	if _, err := raw(t, clientv3.Config{Endpoints: []string{endpoint}}).Compact(t.Context(), int64(last)); err != nil {
		t.Fatal(err)
	}
	if err := s.Watch(t.Context(), "a", first, func([]coord.Event) error { return errors.New("changed") }); !errors.Is(err, coord.ErrCompacted) {
		t.Fatalf("the watch ended with %v", err)
	}
	rows, rev, err := s.List(t.Context(), "a")
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	seen := errors.New("seen")
	done := make(chan error, 1)
	go func() { done <- s.Watch(t.Context(), "a", rev, func([]coord.Event) error { return seen }) }()
	put(t, s, "a", "4")
	if err := <-done; !errors.Is(err, seen) {
		t.Fatalf("after a list the watch ended with %v", err)
	}
}

func TestTLSAndPassword(t *testing.T) {
	e, endpoint := embedded(t, true)
	pem, err := os.ReadFile(filepath.Join(e.Config().Dir, "fixtures", "client", "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate")
	}
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	admin := raw(t, clientv3.Config{Endpoints: []string{endpoint}, TLS: conf})
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := admin.UserAdd(t.Context(), "spill", "way"); return err },
		func() error { _, err := admin.RoleAdd(t.Context(), "rows"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(t.Context(), "rows", "spillway/", clientv3.GetPrefixRangeEnd("spillway/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserGrantRole(t.Context(), "spill", "rows"); return err },
		func() error { _, err := admin.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	s := Settings{Endpoints: []string{endpoint}, Username: "spill", Password: "way", RequestTimeout: 10 * time.Second, DialTimeout: 20 * time.Second}
	st, err := Open(t.Context(), Deps{TLS: conf}, s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	put(t, st, "a", "1")

	s.Password = "wrong"
	if st, err := Open(t.Context(), Deps{TLS: conf}, s); !fault.Is(err, fault.Unavailable) {
		t.Errorf("with a wrong password: %v %v", st, err)
	}
	s.Password, s.DialTimeout = "way", time.Second
	if st, err := Open(t.Context(), Deps{TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}}, s); !fault.Is(err, fault.Unavailable) {
		t.Errorf("with an unknown certificate: %v %v", st, err)
	}
}

func TestSettingsSayEveryMistake(t *testing.T) {
	_, err := Open(t.Context(), Deps{}, Settings{Prefix: "/x", Password: "p", RequestTimeout: -1})
	if !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) || len(all.Unwrap()) != 4 {
		t.Errorf("%v", err)
	}
}

func TestNobodyThereIsUnavailable(t *testing.T) {
	_, err := Open(t.Context(), Deps{}, Settings{Endpoints: []string{"127.0.0.1:1"}, DialTimeout: 300 * time.Millisecond})
	if !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
}

// The answers of etcd while its process is killed and started again are linearizable: a committed write is there, a refused
// one is not, and one without an answer is one of the two. A watch sees every commit, in order, across the restarts.
func TestKilledEtcdForgetsNothing(t *testing.T) {
	p := newProcess(t)
	open := func() *Store {
		s, err := Open(t.Context(), Deps{}, Settings{Endpoints: []string{p.url}, DialTimeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open()
	start := put(t, s, "register", "0")

	h := &history{began: time.Now()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var workers, watcher sync.WaitGroup
	var values atomic.Int64
	for id := range 4 {
		own := open()
		workers.Go(func() { h.work(ctx, own, id, &values) })
	}
	var seen []coord.Event
	watchDone, endWatch := context.WithCancel(t.Context())
	watcher.Go(func() {
		err := open().Watch(watchDone, "register", start, func(es []coord.Event) error {
			seen = append(seen, es...)
			if string(es[len(es)-1].Value) == "end" {
				endWatch()
			}
			return nil
		})
		if !fault.Is(err, fault.Canceled) {
			t.Errorf("the watch ended with %v", err)
			endWatch()
		}
	})
	for range 3 {
		time.Sleep(time.Second)
		p.kill()
		time.Sleep(300 * time.Millisecond)
		p.start(t)
		h.await(t) // a client committed again: the clients found their way back
	}
	cancel()
	workers.Wait()
	for {
		if _, ok, err := s.Commit(t.Context(), nil, []coord.Write{{Key: "register", Value: []byte("end")}}); err == nil && ok {
			break
		}
	}
	<-watchDone.Done()
	watcher.Wait()

	if res := porcupine.CheckOperationsTimeout(register, h.ops, time.Minute); res != porcupine.Ok {
		t.Errorf("history of %d operations: %v", len(h.ops), res)
	}
	h.compare(t, seen)
	t.Logf("%d operations, %d committed, %d without an answer", len(h.ops), h.committed.Load(), h.unknown)
}

// history is the clients' requests and the answers to them.
type history struct {
	began     time.Time
	committed atomic.Int64

	mu      sync.Mutex
	ops     []porcupine.Operation
	unknown int
}

type request struct{ old, new string } // new "": a read
type answer struct {
	value       string // of a read
	ok, unknown bool
}

var register = porcupine.Model{
	Init: func() any { return "0" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(request), output.(answer)
		switch {
		case in.new == "":
			return out.value == state, state
		case out.unknown && state == in.old, out.ok && state == in.old:
			return true, in.new
		case out.unknown: // it came too late to change anything
			return true, state
		}
		return !out.ok && state != in.old, state
	},
}

// work reads, then writes another value if the value it read is still there.
func (h *history) work(ctx context.Context, s *Store, id int, values *atomic.Int64) {
	for ctx.Err() == nil {
		call := time.Since(h.began)
		row, ok, err := s.Get(context.Background(), "register")
		if err != nil || !ok {
			time.Sleep(20 * time.Millisecond)
			continue // a read without an answer says nothing
		}
		h.add(id, request{}, answer{value: string(row.Value)}, call)
		value := fmt.Sprint(values.Add(1))
		call = time.Since(h.began)
		_, ok, err = s.Commit(context.Background(), []coord.Condition{{Key: "register", Revision: row.Revision}}, []coord.Write{{Key: "register", Value: []byte(value)}})
		h.add(id, request{string(row.Value), value}, answer{ok: ok, unknown: err != nil}, call)
		if ok {
			h.committed.Add(1)
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *history) add(id int, in request, out answer, call time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: id, Input: in, Call: int64(call), Output: out, Return: int64(time.Since(h.began))}
	if out.unknown {
		h.unknown++
		op.ClientId, op.Return = 1000+h.unknown, math.MaxInt64 // it may still happen
	}
	h.ops = append(h.ops, op)
}

func (h *history) await(t *testing.T) {
	t.Helper()
	before := h.committed.Load()
	for end := time.Now().Add(60 * time.Second); h.committed.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody can commit after the restart")
		}
	}
}

// compare compares the commits with the events of the watch.
func (h *history) compare(t *testing.T, seen []coord.Event) {
	times := map[string]int{}
	last := coord.Revision(0)
	for _, e := range seen {
		times[string(e.Value)]++
		if e.Revision <= last {
			t.Errorf("the watch saw revision %d after %d", e.Revision, last)
		}
		last = e.Revision
	}
	for _, op := range h.ops {
		in, out := op.Input.(request), op.Output.(answer)
		if in.new == "" || out.unknown {
			continue
		}
		if want := map[bool]int{true: 1}[out.ok]; times[in.new] != want {
			t.Errorf("value %s, committed %v, was seen %d times by the watch", in.new, out.ok, times[in.new])
		}
	}
}
