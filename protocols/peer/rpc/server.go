package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/handshake"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/peer/peerpb"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// Deps are the parts that a server serves.
type Deps struct {
	Storage    peer.Storage
	Metadata   peer.Metadata // nil: this is no metadata server, its calls are Unavailable
	Rows       peer.Rows     // nil: administrators get no rows of the coordination store here
	Links      *Links        // nil: this server has no copies, links to it are Unavailable
	Self       peer.Self     // what Ping answers
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: none
	Tracer     *trace.Tracer         // nil: calls have no spans
	Processors int                   // there are; 0: as many as Go's scheduler uses
}

// Server answers gateways and other servers. It serves one listener or several.
type Server struct {
	// Constant.
	deps     Deps
	settings Settings
	creds    credentials.TransportCredentials
	grpc     *grpc.Server
	metrics  *serverMetrics
	handlers map[string]func(grpc.ServerStream) error // by method

	// The longest wait for the next message of a request; constant once it serves.
	requestMax time.Duration
	// The longest time in which nothing of an answer is read; constant once it serves.
	sendMax time.Duration

	withheld atomic.Pointer[error] // Withhold

	stopping chan struct{} // closed by Shutdown
	once     sync.Once
	running  sync.WaitGroup // goroutines of streams
	starting sync.Mutex     // held to begin and to stop

	insertBytes  atomic.Int64           // of inserts under way
	decoded      *semaphore.Weighted    // room for their rows, of Settings.DecodedBytesMax
	insertsHeld  budget.Held            // both
	requestBytes atomic.Int64           // of other requests, until they are answered, as Settings.RequestBytesMax bounds them
	requestsHeld budget.Held            // the same, and the copies that decoding makes
	answerBytes  budget.Held            // of answers that are being sent, but those of selects and evaluations, which are sent as they are made
	classBytes   [classMax]atomic.Int64 // of requestBytes, by class
	callers      callers
	arrivals     arrivals // messages that are not whole yet, and those of inserts that are not done
}

// Bounds of one request and of one answer that is no select.
const (
	requestBytesMax = peer.MapBytesMax + 1<<20
	answerBytesMax  = requestBytesMax
)

// HTTP/2 windows: how much a sender may send before the receiver has read it. Their size is fixed, because one that grows
// with measurements would be memory without a bound.
const (
	serverStreamWindow = 256 << 10
	clientStreamWindow = 1 << 20
	connectionWindow   = 16 << 20
)

// streamWorkers are goroutines that answer one call after the other, so that their stacks need not grow for each. While all are busy, each
// other call has a goroutine of its own: streams that are kept (inserts, links, evaluations) hold a worker as long as they last.
const streamWorkers = 16

// NewServer makes a server; it serves nothing yet, and must be shut down. Errors are Invalid: settings, or certificates that cannot be read.
func NewServer(d Deps, s Settings) (*Server, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if d.Storage == nil {
		return nil, fault.Errorf(fault.Invalid, "a server of peers without a storage")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	creds, err := newCredentials(s.TLS, "", d.Log)
	if err != nil {
		return nil, err
	}
	if c, ok := creds.(*certificates); ok {
		c.strangers.most = s.StrangersMax
		c.gate = handshake.New(handshake.Deps{Processors: d.Processors, Registerer: d.Registerer})
	}
	srv := &Server{deps: d, settings: s, creds: creds, stopping: make(chan struct{}), decoded: semaphore.NewWeighted(s.DecodedBytesMax), arrivals: newArrivals(&s), callers: newCallers(&s), requestMax: requestShare * s.SilenceMax, sendMax: sendShare * s.SilenceMax}
	srv.metrics = newServerMetrics(d.Registerer, srv)
	srv.grpc = grpc.NewServer(
		grpc.Creds(newPacedCredentials(creds, &s)),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxRecvMsgSize(messageBytesMax),
		grpc.MaxSendMsgSize(messageBytesMax),
		grpc.InitialWindowSize(serverStreamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ConnectionTimeout(10*time.Second), // of a handshake
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.SilenceMax / 2, Timeout: s.SilenceMax / 2}),
		grpc.WaitForHandlers(true),
	)
	srv.grpc.RegisterService(srv.service(), nil)
	return srv, nil
}

// Serve answers on a listener until Shutdown, and closes it.
func (s *Server) Serve(l net.Listener) error {
	if !s.begin() {
		return l.Close()
	}
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fault.Wrap(err, fault.Unavailable, "serve peers on %v", l.Addr())
}

// begin starts the server's own goroutine, unless Shutdown came first: it waits for goroutines, and none may come after that.
func (s *Server) begin() bool {
	s.starting.Lock()
	defer s.starting.Unlock()
	select {
	case <-s.stopping:
		return false
	default:
	}
	s.running.Go(s.watchRevoked)
	return true
}

// stop asks all goroutines to end; once.
func (s *Server) stop() {
	s.starting.Lock()
	defer s.starting.Unlock()
	s.once.Do(func() { close(s.stopping) })
}

// Shutdown refuses new requests, lets inserts and calls under way end, and returns when no goroutine is left. When ctx ends
// first, it cuts off those under way, and the error says so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.grpc.GracefulStop()
	}()
	var err error
	select {
	case <-gone:
	case <-ctx.Done():
		s.grpc.Stop()
		<-gone
		err = fault.Wrap(ctx.Err(), fault.Canceled, "calls of peers were cut off")
	}
	s.running.Wait()
	return err
}

// Withhold has the server answer all calls but Ping with why, which should be Unavailable, until it is called with nil.
func (s *Server) Withhold(why error) {
	if why == nil {
		s.withheld.Store(nil)
		return
	}
	s.withheld.Store(&why)
}

// ping answers which server this is.
func (s *Server) ping(context.Context, *peerpb.Nothing) (*peerpb.Self, error) {
	is := s.deps.Self
	return &peerpb.Self{Server: is.Server, Store: is.Store, Process: is.Process}, nil
}

var errStopping = fault.Errorf(fault.Unavailable, "the server is stopping")

func (s *Server) service() *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: service}
	s.handlers = map[string]func(grpc.ServerStream) error{}
	add := func(name string, f func(grpc.ServerStream) error) {
		s.handlers[name] = f
		desc := both(name)
		desc.Handler = func(_ any, ss grpc.ServerStream) error { return toStatus(s.called(name, ss, f)) }
		d.Streams = append(d.Streams, desc)
	}
	add(methodInserts, s.inserts)
	add(methodSelect, s.reads(s.selectSeries))
	add(methodEvaluate, s.reads(s.evaluate))
	add(methodEvaluations, s.reads(s.evaluations))
	add(methodEvaluationsKept, s.keptEvaluations)
	add(methodReadsKept, s.keptReads)
	add(methodPing, answer(s, 1<<10, s.ping))
	add(methodLabelNames, s.reads(lookUp(s, s.labelNames)))
	add(methodLabelValues, s.reads(lookUp(s, s.labelValues)))
	add(methodExemplars, s.reads(lookUp(s, s.exemplars)))
	add(methodPutMetadata, mapOf(s, s.putMetadata))
	add(methodGetMetadata, s.reads(lookUp(s, s.getMetadata)))
	add(methodDeleteSeries, answer(s, smallMax, s.deleteSeries))
	add(methodCleanTombstones, answer(s, smallMax, s.cleanTombstones))
	add(methodStats, answer(s, smallMax, s.stats))
	add(methodStagedStats, answer(s, smallMax, s.stagedStats))
	add(methodStagedTimes, answer(s, smallMax, s.stagedTimes))
	add(methodEndSlices, answer(s, smallMax, s.endSlices))
	add(methodHighestRank, answer(s, smallMax, s.highestRank))
	add(methodChange, mapOf(s, s.change))
	add(methodStore, mapOf(s, s.store))
	add(methodStoreOps, mapOf(s, s.store))
	add(methodFetch, answer(s, smallMax, s.fetch))
	add(methodGetRow, answer(s, smallMax, s.getRow))
	add(methodListRows, answer(s, smallMax, s.listRows))
	add(methodCommitRows, answer(s, smallMax, s.commitRows))
	add(methodWatchRows, s.watchRows)
	add(methodLink, s.link)
	add(methodSnapshots, s.snapshots)
	return d
}

// smallMax bounds reads and look-ups, which hold names and matchers only, as a regular expression may be long, and other requests that are short.
const smallMax = 8 << 20

// called handles a call, unless its peer has too many. A ping is always answered: its request is read to its end.
func (s *Server) called(name string, ss grpc.ServerStream, f func(grpc.ServerStream) error) error {
	arriving, ok := s.arriving(name, ss).(*arrivingStream)
	if !ok {
		return s.handle(name, ss, f)
	}
	if err := s.callers.enter(arriving.peer, name == methodPing); err != nil {
		s.metrics.calls.WithLabelValues(name, kindLabel(err)).Inc()
		return err
	}
	defer arriving.end()
	return s.handle(name, arriving, f)
}

func (s *Server) handle(name string, ss grpc.ServerStream, f func(grpc.ServerStream) error) (err error) {
	select {
	case <-s.stopping:
		err = errStopping
	default:
		if why := s.withheld.Load(); why != nil && name != methodPing {
			err = *why
		} else if err = s.allow(name, ss.Context()); err == nil {
			err = s.traced(name, ss, f)
		}
	}
	s.metrics.calls.WithLabelValues(name, kindLabel(err)).Inc()
	return err
}

// reads keeps a panic of a call that reads to that call, and logs it: a query that meets a defect is asked again, of each copy, and would end one server after the other.
func (s *Server) reads(f func(grpc.ServerStream) error) func(grpc.ServerStream) error {
	return func(ss grpc.ServerStream) (err error) {
		defer func() { s.logPanic(err) }()
		defer fault.Caught(&err)
		return f(ss)
	}
}

func (s *Server) logPanic(err error) {
	if fault.IsPanic(err) {
		s.deps.Log.Error("a read met a defect of the program", "error", err)
	}
}

// traced serves a call in a span, if its caller has one.
func (s *Server) traced(name string, ss grpc.ServerStream, f func(grpc.ServerStream) error) error {
	if s.deps.Tracer == nil {
		return f(ss)
	}
	parent := ""
	if md, ok := metadata.FromIncomingContext(ss.Context()); ok {
		if all := md.Get(trace.ParentHeader); len(all) > 0 {
			parent = all[0]
		}
	}
	if parent == "" {
		return f(ss)
	}
	ctx, span := s.deps.Tracer.Remote(ss.Context(), "peer "+name, parent)
	err := f(&tracedStream{ss, ctx})
	span.End(err)
	return err
}

// tracedStream is a stream whose context has a span.
type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the stream's context with its span.
func (s *tracedStream) Context() context.Context { return s.ctx }

// answer makes a handler of an order from a function: one request of at most that many bytes, one answer.
func answer[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](s *Server, most int, f func(context.Context, P) (A, error)) func(grpc.ServerStream) error {
	return answerWithin(s, most, orders, f)
}

// mapOf is answer for a request that may be as long as a map.
func mapOf[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](s *Server, f func(context.Context, P) (A, error)) func(grpc.ServerStream) error {
	return answerWithin(s, requestBytesMax, maps, f)
}

// lookUp is answer for a read or a look-up.
func lookUp[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](s *Server, f func(context.Context, P) (A, error)) func(grpc.ServerStream) error {
	return answerWithin(s, smallMax, reads, f)
}

func answerWithin[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](s *Server, most int, class requestClass, f func(context.Context, P) (A, error)) func(grpc.ServerStream) error {
	return func(ss grpc.ServerStream) error {
		name := methodOf(ss)
		q := P(new(Q))
		in := receiving{s: s, class: class}
		defer in.end()
		got, err := in.chunks(s.awaited(ss), most, q)
		s.metrics.received.WithLabelValues(name).Add(float64(got))
		if err != nil {
			return received(ss.Context(), err)
		}
		a, err := f(ss.Context(), q)
		if err != nil {
			return err
		}
		// The caller decides how fast it is sent. Until then there are the answer and its encoded form.
		bytes := 2 * int64(proto.Size(a))
		s.answerBytes.Add(bytes)
		defer s.answerBytes.Add(-bytes)
		sent, err := sendChunks(ss, a)
		s.metrics.sent.WithLabelValues(name).Add(float64(sent))
		return err
	}
}

// received is the error of a receive: ours as it is, a peer that went away as Canceled.
func received(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.KindOf(err) == fault.Internal {
		return fault.Wrap(err, fault.Canceled, "the caller went away")
	}
	return err
}

func (s *Server) labelNames(ctx context.Context, p *peerpb.Select) (*peerpb.Names, error) {
	q, err := ofSelect(p)
	if err != nil {
		return nil, err
	}
	q.Limit = 0 // of series: this one is of names
	names, truncated, err := s.deps.Storage.LabelNames(ctx, q, int(p.GetLimit()))
	return &peerpb.Names{Names: names, Truncated: truncated}, err
}

func (s *Server) labelValues(ctx context.Context, p *peerpb.Select) (*peerpb.Names, error) {
	q, err := ofSelect(p)
	if err != nil {
		return nil, err
	}
	q.Limit = 0 // of series: this one is of values
	values, truncated, err := s.deps.Storage.LabelValues(ctx, q, string(p.GetName()), int(p.GetLimit()))
	return &peerpb.Names{Names: values, Truncated: truncated}, err
}

func (s *Server) exemplars(ctx context.Context, p *peerpb.ExemplarsQuery) (*peerpb.Exemplars, error) {
	sets := make([][]peer.Matcher, len(p.GetSets()))
	for i, set := range p.GetSets() {
		var err error
		if sets[i], err = ofMatchers(set.GetMatchers()); err != nil {
			return nil, err
		}
	}
	if err := checkCopies(p.GetCopies()); err != nil {
		return nil, err
	}
	all, err := s.deps.Storage.Exemplars(ctx, &peer.Select{Table: p.GetTable(), Partitions: ofPartitions(p.GetAllPartitions(), p.GetPartitions()),
		Lo: p.GetLo(), Hi: p.GetHi(), MapSeq: p.GetMapSeq(), MapNext: point.PartitionID(p.GetMapNext()), Copies: peer.Copies(p.GetCopies())}, sets)
	return &peerpb.Exemplars{Series: mapped(all, toSeriesExemplars)}, err
}

func (s *Server) putMetadata(ctx context.Context, p *peerpb.MetadataRows) (*peerpb.Nothing, error) {
	if err := allowMetadata(s.roleOf(ctx), p.GetTable()); err != nil {
		return nil, err
	}
	return &peerpb.Nothing{}, s.deps.Storage.PutMetadata(ctx, p.GetTable(), mapped(p.GetRows(), ofMetadataRow))
}

func (s *Server) getMetadata(ctx context.Context, p *peerpb.MetadataQuery) (*peerpb.MetadataRows, error) {
	rows, err := s.deps.Storage.GetMetadata(ctx, p.GetTable(), string(p.GetMetric()))
	return &peerpb.MetadataRows{Rows: mapped(rows, toMetadataRow)}, err
}

func (s *Server) deleteSeries(ctx context.Context, p *peerpb.Select) (*peerpb.Nothing, error) {
	q, err := ofDeletion(p)
	if err != nil {
		return nil, err
	}
	return &peerpb.Nothing{}, s.deps.Storage.DeleteSeries(ctx, q)
}

func (s *Server) cleanTombstones(ctx context.Context, p *peerpb.Select) (*peerpb.Nothing, error) {
	q, err := ofSelect(p)
	if err != nil {
		return nil, err
	}
	return &peerpb.Nothing{}, s.deps.Storage.CleanTombstones(ctx, q)
}

func (s *Server) stats(ctx context.Context, p *peerpb.StatsQuery) (*peerpb.Stats, error) {
	st, err := s.deps.Storage.Stats(ctx, p.GetTable(), int(p.GetTop()))
	if err != nil {
		return nil, err
	}
	return toStats(st), nil
}

func (s *Server) stagedStats(ctx context.Context, p *peerpb.StatsQuery) (*peerpb.Stats, error) {
	storage, ok := s.deps.Storage.(peer.StagedCounter)
	if !ok {
		return nil, fault.Errorf(fault.Unavailable, "this server does not count staged rows")
	}
	st, err := storage.StagedStats(ctx, p.GetTable())
	if err != nil {
		return nil, err
	}
	return toStats(st), nil
}

// stagedTimes answers with the times of the statistics alone.
func (s *Server) stagedTimes(ctx context.Context, p *peerpb.StatsQuery) (*peerpb.Stats, error) {
	storage, ok := s.deps.Storage.(peer.StagedRanger)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "this server does not know the times of staged rows")
	}
	lo, hi, err := storage.StagedTimes(ctx, p.GetTable())
	if err != nil {
		return nil, err
	}
	return &peerpb.Stats{MinTime: lo, MaxTime: hi}, nil
}

func (s *Server) endSlices(ctx context.Context, p *peerpb.EndSlices) (*peerpb.Nothing, error) {
	storage, ok := s.deps.Storage.(peer.SliceEnder)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "this server accepts slices of any epoch")
	}
	return &peerpb.Nothing{}, storage.EndSlices(ctx, p.GetTable(), point.PartitionID(p.GetPartition()), point.Epoch(p.GetEpoch()))
}

func (s *Server) highestRank(ctx context.Context, p *peerpb.RankQuery) (*peerpb.HighestRank, error) {
	storage, ok := s.deps.Storage.(peer.SealedRanker)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "this server does not report the ranks of partitions")
	}
	rank, err := storage.HighestRank(ctx, p.GetTable(), point.PartitionID(p.GetPartition()))
	if err != nil {
		return nil, err
	}
	return &peerpb.HighestRank{Rank: uint64(rank)}, nil
}

var errNoMetadata = fault.Errorf(fault.Unavailable, "this server keeps no METADATA")

func (s *Server) change(ctx context.Context, p *peerpb.Change) (*peerpb.Changed, error) {
	if s.deps.Metadata == nil {
		return nil, errNoMetadata
	}
	c, err := ofChange(p)
	if err != nil {
		return nil, err
	}
	done, err := s.deps.Metadata.Change(ctx, c)
	if err != nil {
		return nil, err
	}
	return toChanged(done), nil
}

func (s *Server) store(ctx context.Context, p *peerpb.File) (*peerpb.Nothing, error) {
	if s.deps.Metadata == nil {
		return nil, errNoMetadata
	}
	f, err := ofFile(p)
	if err != nil {
		return nil, err
	}
	return &peerpb.Nothing{}, s.deps.Metadata.Store(ctx, f)
}

func (s *Server) fetch(ctx context.Context, p *peerpb.FileQuery) (*peerpb.File, error) {
	if s.deps.Metadata == nil {
		return nil, errNoMetadata
	}
	txn, err := ofTxn(p.GetTxn())
	if err != nil {
		return nil, err
	}
	since, err := ofSomeTxn(p.GetSince())
	if err != nil {
		return nil, err
	}
	f, err := s.deps.Metadata.Fetch(ctx, &peer.FileQuery{Table: p.GetTable(), Txn: txn, Since: since, Acted: p.GetActed()})
	if err != nil {
		return nil, err
	}
	return toFile(f), nil
}

// selectSeries sends a message that the select is open, then batches of series.
func (s *Server) selectSeries(ss grpc.ServerStream) (err error) {
	in := receiving{s: s, class: reads}
	defer in.end()
	var p peerpb.Select
	if _, err := in.chunks(s.awaited(ss), smallMax, &p); err != nil {
		return received(ss.Context(), err)
	}
	if p.GetFormatMax() < batchVersion {
		return fault.Errorf(fault.Unavailable, "the asker reads batches of format %d, this server writes %d: upgrade it", p.GetFormatMax(), batchVersion)
	}
	q, err := ofSelect(&p)
	if err != nil {
		return err
	}
	q.Ranks = p.GetFormatMax() >= batchRanked
	set, err := s.deps.Storage.Select(ss.Context(), q)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }() // also after a panic, which reads keeps to this call
	return s.sendSeries(ss, set, q.Ranks)
}

// sendSeries sends a version alone first: with it the asker's Select returns, as soon as the store has accepted the query, and before a series is read. A
// series that is longer than a message goes in pieces, each of which ends a batch, so that neither side ever holds more than a message of it.
func (s *Server) sendSeries(ss grpc.ServerStream, set peer.SeriesSet, ranked bool) error {
	buf, _ := pooled([]byte{batchVersion})
	if err := sendBuffer(ss, buf); err != nil {
		return received(ss.Context(), err)
	}
	w := batchWriters.Get().(*batchWriter)
	defer func() {
		w.Reset()
		batchWriters.Put(w)
	}()
	w.Reset()
	w.ranked = ranked
	sent := s.metrics.sent.WithLabelValues(methodSelect)
	flush := func(flags byte) error {
		n := w.pack()
		if n > messageBytesMax {
			return fault.Errorf(fault.TooLarge, "a batch of %d bytes, at most %d travel at once", n, messageBytesMax)
		}
		buf, data := poolBuffer(n)
		w.append(data[:0], flags)
		w.Reset()
		sent.Add(float64(n))
		return received(ss.Context(), sendBuffer(ss, buf))
	}
	for set.Next() {
		rest := *set.At()
		for {
			piece, more := cutSeries(&rest)
			w.add(&piece)
			if !more {
				break
			}
			if err := flush(batchGoesOn); err != nil {
				return err
			}
		}
		if w.full() {
			if err := flush(0); err != nil {
				return err
			}
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	if w.count > 0 {
		return flush(0)
	}
	return nil
}

var batchWriters = sync.Pool{New: func() any { return new(batchWriter) }}

// cutSeries cuts a piece that fits a batch off a series: floats first, then histograms.
func cutSeries(s *peer.Series) (piece peer.Series, more bool) {
	piece = peer.Series{Labels: s.Labels}
	n := min(len(s.Times), pieceRowsMax)
	piece.Times, s.Times = s.Times[:n], s.Times[n:]
	piece.Values, s.Values = s.Values[:n], s.Values[n:]
	piece.Ranks, s.Ranks = cutRanks(s.Ranks, n)
	if len(s.Times) > 0 {
		return piece, true
	}
	bytes := 16 * n
	n = 0
	for n < len(s.Hists) && bytes < 2*batchBytesMax {
		bytes += len(s.Hists[n].H) + 16
		n++
	}
	piece.Hists, s.Hists = s.Hists[:n], s.Hists[n:]
	piece.HistRanks, s.HistRanks = cutRanks(s.HistRanks, n)
	return piece, len(s.Hists) > 0
}

// cutRanks removes n ranks, or all if there are fewer.
func cutRanks(of []point.Stamp, n int) (piece, rest []point.Stamp) {
	n = min(n, len(of))
	return of[:n], of[n:]
}
