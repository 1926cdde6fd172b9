package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Store is a coord.Store on etcd. Errors have the Kinds Unavailable and Canceled, as coord.Store has them, and TooLarge
// for transactions beyond etcd's own limits (1.5 MiB, 128 operations by default). Once the store has been set back all are coord.ErrSetBack.
type Store struct {
	// Constant after Open.
	client   *clientv3.Client
	prefix   string // ends with a slash
	settings Settings
	life     context.Context // ends with Close: so do watches
	end      context.CancelFunc
	closed   atomic.Bool

	seen    atomic.Int64          // the highest revision of an answer
	setBack atomic.Pointer[error] // coord.ErrSetBack, from when it was noticed
}

var _ coord.Store = (*Store)(nil)

// Open connects to the cluster and reads one key, so that wrong addresses, certificates and passwords are reported at once
// (unless it is Lazy). Errors are Invalid (settings) or Unavailable.
func Open(ctx context.Context, d Deps, s Settings) (*Store, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	client, err := clientv3.New(clientv3.Config{
		Context:   life,
		Endpoints: s.Endpoints, TLS: d.TLS, Username: s.Username, Password: s.Password,
		DialTimeout: s.DialTimeout, DialKeepAliveTime: s.PingEvery, DialKeepAliveTimeout: s.RequestTimeout,
		// A request is sent once. A retry would hide a fault that the rules above must see (C117).
		MaxUnaryRetries: 1,
		// All clients must see an etcd that is back in less time than the acquisition of a lease needs: a client that sees it
		// seconds before the holder does would else acquire an empty partition's. gRPC's own pauses grow to two minutes.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * s.RequestTimeout,
		}), grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(2 * window)},
		Logger: zap.NewNop(), // relevant faults come back as errors
	})
	if err != nil {
		end()
		return nil, fault.Wrap(err, fault.Unavailable, "open etcd at %s", strings.Join(s.Endpoints, ", "))
	}
	st := &Store{client: client, prefix: s.Prefix + "/", settings: s, life: life, end: end}
	first, cancel := context.WithTimeout(ctx, s.DialTimeout)
	defer cancel()
	if _, err := client.Get(first, st.prefix, clientv3.WithCountOnly()); err != nil && !s.Lazy {
		return nil, errors.Join(fault.Wrap(err, fault.Unavailable, "open etcd at %s", strings.Join(s.Endpoints, ", ")), st.Close())
	}
	return st, nil
}

// window is how many bytes etcd may send ahead, of an answer and of a watch; rows are small, a page of a list has less. It
// is fixed because gRPC else measures it by a ping for each message, which costs etcd more than the message.
const window = 1 << 20

// Get implements coord.Store.
func (s *Store) Get(ctx context.Context, key string) (coord.Row, bool, error) {
	if err := s.wasSetBack(); err != nil {
		return coord.Row{}, false, err
	}
	req, cancel := context.WithTimeout(ctx, s.settings.RequestTimeout)
	defer cancel()
	seen := s.seen.Load()
	resp, err := s.client.Get(req, s.prefix+key)
	if err != nil {
		return coord.Row{}, false, s.failed(ctx, err, "read %s", key)
	}
	if err := s.saw(seen, resp.Header); err != nil {
		return coord.Row{}, false, err
	}
	if len(resp.Kvs) == 0 {
		return coord.Row{}, false, nil
	}
	kv := resp.Kvs[0]
	return coord.Row{Key: key, Value: kv.Value, Revision: coord.Revision(kv.ModRevision)}, true, nil
}

// pageMax bounds one answer of a List: rows are small, etcd's answers must stay below gRPC's limit for one message.
const pageMax = 1000

// List implements coord.Store. It reads pages, all as of the first one's revision.
func (s *Store) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if err := s.wasSetBack(); err != nil {
		return nil, 0, err
	}
	from := s.prefix + prefix
	end := clientv3.GetPrefixRangeEnd(from)
	var rows []coord.Row
	var rev int64
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageMax), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
		if rev > 0 {
			opts = append(opts, clientv3.WithRev(rev))
		}
		req, cancel := context.WithTimeout(ctx, s.settings.RequestTimeout)
		seen := s.seen.Load()
		resp, err := s.client.Get(req, from, opts...)
		cancel()
		if err != nil {
			return nil, 0, s.failed(ctx, err, "list %s", prefix)
		}
		if err := s.saw(seen, resp.Header); err != nil {
			return nil, 0, err
		}
		if rev == 0 {
			rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			rows = append(rows, coord.Row{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Value: kv.Value, Revision: coord.Revision(kv.ModRevision)})
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return rows, coord.Revision(rev), nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Commit implements coord.Store. A transaction of conditions alone gets the revision as of which they held.
func (s *Store) Commit(ctx context.Context, conditions []coord.Condition, writes []coord.Write) (coord.Revision, bool, error) {
	if err := s.wasSetBack(); err != nil {
		return 0, false, err
	}
	cmps := make([]clientv3.Cmp, 0, len(conditions))
	for _, c := range conditions {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(s.prefix+c.Key), "=", int64(c.Revision)))
	}
	ops := make([]clientv3.Op, 0, len(writes))
	for _, w := range writes {
		if w.Delete {
			ops = append(ops, clientv3.OpDelete(s.prefix+w.Key))
		} else {
			ops = append(ops, clientv3.OpPut(s.prefix+w.Key, string(w.Value)))
		}
	}
	if len(ops) == 0 {
		// Any member answers a transaction without a request from the data at hand, however old it is. One that reads
		// as well is linearizable.
		ops = append(ops, clientv3.OpGet(s.prefix, clientv3.WithKeysOnly()))
	}
	req, cancel := context.WithTimeout(ctx, s.settings.RequestTimeout)
	defer cancel()
	seen := s.seen.Load()
	resp, err := s.client.Txn(req).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return 0, false, s.failed(ctx, err, "commit %d rows", len(writes))
	}
	if err := s.saw(seen, resp.Header); err != nil {
		return 0, false, err
	}
	if !resp.Succeeded {
		return 0, false, nil
	}
	return coord.Revision(resp.Header.Revision), true, nil
}

// saw notes the revision of an answer. Every request here is linearizable: an answer of a lower revision than the highest seen before it was
// sent is that of a store that was set back. From then on every method fails, and nothing is sent.
func (s *Store) saw(before int64, h *etcdserverpb.ResponseHeader) error {
	if h.Revision < before {
		err := coord.SetBack(fmt.Sprintf("from revision %d to %d", before, h.Revision))
		if s.setBack.CompareAndSwap(nil, &err) {
			s.end()
		}
	}
	for was := s.seen.Load(); was < h.Revision && !s.seen.CompareAndSwap(was, h.Revision); was = s.seen.Load() {
	}
	return s.wasSetBack()
}

func (s *Store) wasSetBack() error {
	if err := s.setBack.Load(); err != nil {
		return *err
	}
	return nil
}

// Watch implements coord.Store. The client resumes it at the next revision when a connection is lost, on any member
// that has a leader.
func (s *Store) Watch(ctx context.Context, prefix string, after coord.Revision, f func([]coord.Event) error) error {
	if s.closed.Load() {
		return errClosed
	}
	watch, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	for {
		again, err := s.follow(watch, prefix, &after, f)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case s.wasSetBack() != nil:
			return s.wasSetBack()
		case s.closed.Load():
			return errClosed
		case !again:
			return err
		}
		select {
		case <-watch.Done():
		case <-time.After(leaderlessPause):
		}
	}
}

// leaderlessPause is how long a watch waits for etcd to have a leader before it asks again: a member without one refuses it at once.
const leaderlessPause = 100 * time.Millisecond

// follow watches until the channel ends; again: nothing is lost, watch on from after.
func (s *Store) follow(ctx context.Context, prefix string, after *coord.Revision, f func([]coord.Event) error) (again bool, err error) {
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range s.client.Watch(stream, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(*after)+1), clientv3.WithFragment()) {
		switch {
		case resp.CompactRevision != 0:
			return false, coord.ErrCompacted
		case errors.Is(resp.Err(), rpctypes.ErrNoLeader):
			return true, nil
		case resp.Err() != nil:
			return false, s.failed(ctx, resp.Err(), "watch %s", prefix)
		}
		if err := s.saw(0, resp.Header); err != nil {
			return false, err
		}
		events := make([]coord.Event, 0, len(resp.Events))
		for _, e := range resp.Events {
			rev := coord.Revision(e.Kv.ModRevision)
			*after = max(*after, rev)
			event := coord.Event{Row: coord.Row{Key: strings.TrimPrefix(string(e.Kv.Key), s.prefix), Revision: rev}, Deleted: e.Type == clientv3.EventTypeDelete}
			if !event.Deleted {
				event.Value = slices.Clone(e.Kv.Value)
			}
			events = append(events, event)
		}
		if len(events) > 0 {
			if err := f(events); err != nil {
				return false, err
			}
		}
	}
	return false, s.failed(ctx, errors.New("the watch ended"), "watch %s", prefix)
}

// Close ends watches with an Unavailable error. Closing twice is fine.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.end()
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		return nil // it ended because its context is ours
	}
	return err
}

var errClosed = fault.Errorf(fault.Unavailable, "the coordination store is closed")

// failed gives an error its Kind: Canceled where the caller went away, Unavailable where etcd did.
func (s *Store) failed(ctx context.Context, err error, format string, args ...any) error {
	switch {
	case s.wasSetBack() != nil:
		return s.wasSetBack()
	case s.closed.Load():
		return errClosed
	case ctx.Err() != nil:
		return fault.Wrap(ctx.Err(), fault.Canceled, "etcd: "+format, args...)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fault.Wrap(err, fault.TooLarge, "etcd: "+format, args...)
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return fault.Wrap(err, fault.Throttled, "etcd: "+format, args...)
	}
	return fault.Wrap(err, fault.Unavailable, "etcd: "+format, args...)
}
