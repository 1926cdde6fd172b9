package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// member is our part in one consumer group.
type member struct {
	// Constant after open.
	c       *Consumer
	index   int
	cluster *Cluster
	log     *slog.Logger
	stats   *stats
	client  *kgo.Client
	letters letters
	fetch   fetchSize
	tls     *tls.Config // of connections to brokers; nil: in the clear

	fetching *kgo.Client // the client, which may call back before open returns; owned by the goroutine of its group

	// committing is held from the reading of offsets to the broker's answer, and while a partition leaves: a commit that
	// was read before the partition moved must not arrive after the next owner's.
	committing sync.Mutex
}

func newMember(c *Consumer, index int) *member {
	cluster := &c.settings.Clusters[index]
	return &member{c: c, index: index, cluster: cluster, stats: newStats(index), log: c.log.With("cluster", cluster.Name, "group", cluster.Group)}
}

// open makes the client, which joins the group at once.
func (m *member) open() error {
	if m.cluster.DeadLetter.Topic == "" {
		path := m.cluster.DeadLetter.File
		if path == "" {
			path = "kafka-dead-letters-" + m.cluster.Name + ".jsonl"
		}
		f, err := openFileLetters(path, m.cluster.DeadLetter.FileBytesMax)
		if err != nil {
			return err
		}
		m.letters = f
	}
	opts, err := m.cluster.options()
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "kafka cluster %s", m.cluster.Name)
	}
	unpacks, err := newUnpacker(m)
	if err != nil {
		return err
	}
	opts = append(opts, kgo.WithDecompressor(unpacks),
		kgo.OnPartitionsAssigned(m.assigned), kgo.OnPartitionsRevoked(m.revoked), kgo.OnPartitionsLost(m.lost),
		kgo.OnOffsetsFetched(m.resumed), kgo.WithLogger(clientLog{m.log}), kgo.WithHooks(groupErrors{m}, &brokers{m: m, failures: map[string]int{}}, &m.fetch, unpacks))
	if start, _ := startOf(m.cluster.Start); start == kgo.NewOffset().AtEnd() {
		opts = append(opts, kgo.AdjustFetchOffsetsFn(m.fromEnd))
	}
	if m.cluster.TLS.Enabled {
		if m.tls, err = m.cluster.TLS.config(); err != nil {
			return fault.Wrap(err, fault.Invalid, "kafka cluster %s", m.cluster.Name)
		}
	}
	opts = append(opts, kgo.Dialer(m.dial))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "kafka cluster %s", m.cluster.Name)
	}
	m.c.mu.Lock() // callbacks may be under way already, and Status reads it
	m.client = client
	m.c.mu.Unlock()
	if m.letters == nil {
		m.letters = &topicLetters{client: client, topic: m.cluster.DeadLetter.Topic}
	}
	return nil
}

// close leaves the group. The client revokes all partitions, which finishes and commits the work under way.
func (m *member) close() {
	if m.client != nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			m.client.CloseAllowingRebalance()
		}()
		select {
		case <-closed:
		case <-time.After(time.Duration(m.cluster.RevokeWait) + commitTimeMax + closeTimeMax):
			m.log.Warn("the brokers did not answer while leaving; the group notices by the session timeout")
		}
	}
	if m.letters != nil {
		if err := m.letters.close(); err != nil {
			m.log.Warn("closing the dead letters", "error", err)
		}
	}
}

// Bounds on waits for brokers, beside the settings.
const (
	commitTimeMax = 5 * time.Second
	closeTimeMax  = 5 * time.Second
)

// run polls until ctx ends, then leaves the group.
func (m *member) run(ctx context.Context) {
	var g sync.WaitGroup
	g.Go(func() { m.commitLoop(ctx) })
	g.Go(func() { m.lagLoop(ctx) })
	for ctx.Err() == nil {
		fetches := m.client.PollFetches(ctx)
		if fetches.IsClientClosed() {
			break
		}
		m.accept(fetches)
		m.client.AllowRebalance()
	}
	g.Wait()
	m.close()
}

// accept queues the result of a poll. Callbacks of the group wait until it returns (AllowRebalance), so no partition moves before its records are in the tracker.
func (m *member) accept(fetches kgo.Fetches) {
	m.c.mu.Lock()
	any := false
	fetches.EachPartition(func(t kgo.FetchTopicPartition) {
		p := partition{m.index, t.Topic, t.Partition}
		m.c.unpacked.forget(p)
		if t.Err != nil && len(t.Records) == 0 { // of records with an error the client goes on behind them
			return
		}
		m.stats.end(p, t.HighWatermark)
		any = m.pushLocked(p, t.Records) || any
	})
	m.c.unpacked.drained(m.index, time.Now())
	m.c.answers.polled(m.index)
	if any {
		m.c.wakeLocked()
	}
	held := m.c.heldLocked()
	m.c.mu.Unlock()
	m.c.cover(held)
	for _, e := range fetches.Errors() {
		m.fetchFailed(e)
	}
	m.adapt()
	m.turn()
}

// pushLocked cuts a partition's records into batches and queues them.
func (m *member) pushLocked(p partition, records []*kgo.Record) (pushed bool) {
	for len(records) > 0 {
		n, bytes := 0, int64(0)
		for n < len(records) && (n == 0 || bytes+recordBytes(records[n]) <= m.c.settings.WriteBytesMax) {
			bytes += recordBytes(records[n])
			n++
		}
		last := records[n-1]
		k, ok := m.c.tracker.poll(p, last.Offset, last.LeaderEpoch)
		if !ok {
			return pushed
		}
		m.c.queue.push(&batch{ticket: k, records: records[:n:n], bytes: bytes})
		m.c.shares.add(p, bytes)
		m.stats.took(p, records[0].Offset, n, bytes)
		records, pushed = records[n:], true
	}
	return pushed
}

// recordBytes is the memory of a waiting record: its parts, and about 200 bytes of franz-go's record.
func recordBytes(r *kgo.Record) int64 {
	n := 200 + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 40
	}
	return int64(n)
}

// fetchFailed handles a partition that cannot be read. The client does not report errors that it retries by itself.
func (m *member) fetchFailed(e kgo.FetchError) {
	var large *kgo.ErrDecompressTooLarge
	switch {
	case errors.Is(e.Err, context.Canceled), errors.Is(e.Err, kgo.ErrClientClosed):
	case errors.Is(e.Err, errFull): // the next fetch asks for it again
	case errors.As(e.Err, &large):
		m.skip(large)
	case e.Partition < 0: // of a whole answer
		m.stats.failed(fmt.Sprintf("an answer of a broker cannot be read: %v", e.Err))
		m.c.metrics.fetchErrors.Inc()
		m.log.Warn("an answer of a broker cannot be read, and the partitions in it are not read meanwhile; if it exceeds BrokerMaxReadBytes, a batch is larger than fetch_bytes_max + batch_bytes_max + 16 MiB: raise batch_bytes_max",
			"topic", e.Topic, "error", e.Err)
	default:
		m.stats.failed(fmt.Sprintf("topic %s partition %d cannot be read: %v", e.Topic, e.Partition, e.Err))
		m.c.metrics.fetchErrors.Inc()
		m.log.Warn("a partition cannot be read", "topic", e.Topic, "partition", e.Partition, "error", e.Err)
	}
}

// skip puts aside a batch that is too large to be decompressed, and reads on behind it.
func (m *member) skip(e *kgo.ErrDecompressTooLarge) {
	p := partition{m.index, e.Topic, e.Partition}
	l := &letter{topic: e.Topic, partition: e.Partition, offset: e.Offset, kind: fault.TooLarge,
		reason: fmt.Sprintf("the batch of offsets %d to %d decompresses to more than batch_bytes_max, %d; its records stay in the topic", e.Offset, e.NextOffset-1, m.cluster.BatchBytesMax)}
	m.c.mu.Lock()
	k, ok := m.c.tracker.poll(p, e.NextOffset-1, e.Epoch)
	if ok {
		m.c.queue.push(&batch{ticket: k, poison: l, bytes: 200})
		m.c.shares.add(p, 200)
		m.c.wakeLocked()
	}
	m.c.mu.Unlock()
	if ok {
		m.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{e.Topic: {e.Partition: {Epoch: e.Epoch, Offset: e.NextOffset}}})
	}
}

// turn pauses and resumes partitions as the shares demand. A full queue pauses fetches and not polls: from a poll to
// AllowRebalance the rebalances of the whole group wait for this member, so accept must not wait for room. The client is called without mu, which its callbacks acquire.
func (m *member) turn() {
	m.c.turning.Lock()
	defer m.c.turning.Unlock()
	m.c.mu.Lock()
	t := m.c.shares.turn(m.index)
	client := m.client
	m.c.mu.Unlock()
	if client == nil {
		return
	}
	if len(t.pauseTopics) > 0 {
		client.PauseFetchTopics(t.pauseTopics...)
	}
	if len(t.pauseParts) > 0 {
		client.PauseFetchPartitions(t.pauseParts)
	}
	m.each(t.resumeParts, m.c.unpacked.forget)
	m.c.unpacked.forgetTopics(m.index, t.resumeTopics)
	if len(t.resumeTopics) > 0 {
		client.ResumeFetchTopics(t.resumeTopics...)
	}
	if len(t.resumeParts) > 0 {
		client.ResumeFetchPartitions(t.resumeParts)
	}
	m.c.metrics.turned(t)
}

// turn has all members pause and resume: shares depend on the topics of all, and partitions that move leave room to those that stay.
func (c *Consumer) turn() {
	for _, m := range c.members {
		m.turn()
	}
}

// each calls f for the partitions of a callback, as ours.
func (m *member) each(parts map[string][]int32, f func(partition)) {
	for topic, ids := range parts {
		for _, id := range ids {
			f(partition{m.index, topic, id})
		}
	}
}

// assigned begins partitions, and resumes those that an earlier assignment left paused.
func (m *member) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	m.stats.joined(true) // each time that the group was joined, also by one more member than there are partitions
	if len(parts) == 0 {
		return
	}
	m.c.turning.Lock()
	m.c.mu.Lock()
	m.each(parts, func(p partition) {
		m.c.tracker.assign(p)
		m.c.queue.assign(p)
		m.c.shares.assign(p)
		m.stats.assign(p)
	})
	var topics []string
	for topic := range parts {
		if !m.c.shares.topics[topicKey{m.index, topic}].paused {
			topics = append(topics, topic)
		}
	}
	m.c.mu.Unlock()
	client.ResumeFetchPartitions(parts)
	if len(topics) > 0 {
		client.ResumeFetchTopics(topics...)
	}
	m.c.turning.Unlock()
	m.c.metrics.rebalances.WithLabelValues(m.cluster.Name, "assigned").Inc()
	m.log.Info("partitions assigned", "partitions", parts)
}

// resumed notes from where the group goes on.
func (m *member) resumed(_ context.Context, client *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	m.fetching = client
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	note := func(topic string, id int32, offset int64, epoch int32, code int16) {
		if code == 0 && offset >= 0 {
			m.c.tracker.resume(partition{m.index, topic, id}, position{offset, epoch})
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			note(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.ErrorCode)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				note(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.ErrorCode)
			}
		}
	}
	return nil
}

// revoked gives partitions up: waiting work is dropped, running work is finished or abandoned, finished work is committed.
// Then the partition may move.
func (m *member) revoked(ctx context.Context, _ *kgo.Client, parts map[string][]int32) {
	if len(parts) == 0 {
		return
	}
	leaving := m.dropQueued(parts)
	abandoned := m.await(ctx, leaving)
	m.committing.Lock()
	err := m.commitLocked(ctx, func(p partition) bool { return leaving[p] })
	m.forget(leaving)
	m.committing.Unlock()
	m.c.turn()
	m.c.metrics.rebalances.WithLabelValues(m.cluster.Name, "revoked").Inc()
	m.log.Info("partitions revoked", "partitions", parts, "abandoned", abandoned, "error", err)
}

// lost drops partitions that another member may own already. Nothing is committed.
func (m *member) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	if len(parts) == 0 {
		return
	}
	leaving := m.dropQueued(parts)
	m.committing.Lock()
	m.forget(leaving)
	m.committing.Unlock()
	m.c.turn()
	m.c.metrics.rebalances.WithLabelValues(m.cluster.Name, "lost").Inc()
	m.log.Warn("partitions lost; what was not committed is delivered again", "partitions", parts)
}

func (m *member) dropQueued(parts map[string][]int32) map[partition]bool {
	leaving := map[partition]bool{}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.each(parts, func(p partition) {
		leaving[p] = true
		if bytes := m.c.queue.drop(p); bytes > 0 {
			m.c.shares.add(p, -bytes)
		}
	})
	return leaving
}

func (m *member) forget(leaving map[partition]bool) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for p := range leaving {
		m.c.tracker.drop(p)
		m.c.shares.drop(p)
		m.stats.drop(p)
	}
}

// await waits for work of leaving partitions, for RevokeWait at most, and abandons the rest.
func (m *member) await(ctx context.Context, leaving map[partition]bool) (abandoned int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(m.cluster.RevokeWait))
	defer cancel()
	for _, j := range m.jobs(leaving) {
		select {
		case <-j.done:
		case <-ctx.Done():
			j.cancel()
			abandoned++
		}
	}
	return abandoned
}

func (m *member) jobs(of map[partition]bool) (out []*job) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for j := range m.c.running {
		for _, l := range j.lanes {
			if of[l.partition] {
				out = append(out, j)
				break
			}
		}
	}
	return out
}

// commitLoop commits every CommitInterval, more or less by a tenth, so that gateways do not all come at once.
func (m *member) commitLoop(ctx context.Context) {
	every := time.Duration(m.cluster.CommitInterval)
	for sleep(ctx, every+time.Duration((rand.Float64()-0.5)*0.2*float64(every))) {
		m.committing.Lock()
		err := m.commitLocked(ctx, func(p partition) bool { return p.member == m.index })
		m.committing.Unlock()
		if err != nil && ctx.Err() == nil {
			m.stats.failed("commit: " + err.Error())
			m.c.metrics.commitErrors.Inc()
			m.log.Warn("offsets could not be committed; it is tried again", "error", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// commitLocked commits the finished spans of the partitions that want selects. m.committing is held.
func (m *member) commitLocked(ctx context.Context, want func(partition) bool) error {
	m.c.mu.Lock()
	list := m.c.tracker.commits(want)
	m.c.mu.Unlock()
	if len(list) == 0 {
		m.markClean()
		return nil
	}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, c := range list {
		if offsets[c.partition.topic] == nil {
			offsets[c.partition.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[c.partition.topic][c.partition.id] = kgo.EpochOffset{Epoch: c.at.epoch, Offset: c.at.offset}
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeMax)
	defer cancel()
	var answer *kmsg.OffsetCommitResponse
	var err error
	m.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, e error) {
		answer, err = resp, e
	})
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "commit")
	}
	return m.confirm(list, answer)
}

// confirm records the offsets that the broker accepted.
func (m *member) confirm(list []commit, answer *kmsg.OffsetCommitResponse) error {
	refused := map[partition]error{}
	taken := map[partition]bool{}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			at := partition{m.index, t.Topic, p.Partition}
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				refused[at] = err
			} else {
				taken[at] = true
			}
		}
	}
	var errs []error
	m.c.mu.Lock()
	for _, c := range list {
		if taken[c.partition] {
			m.c.tracker.committed(c)
		} else if err := refused[c.partition]; err != nil {
			errs = append(errs, fmt.Errorf("%s/%d: %w", c.partition.topic, c.partition.id, err))
		}
	}
	m.c.mu.Unlock()
	if len(errs) == 0 {
		m.stats.clean(time.Now())
		m.c.metrics.commits.Inc()
	}
	return errors.Join(errs...)
}

// markClean records the time if nothing that was polled waits to be committed.
func (m *member) markClean() {
	m.c.mu.Lock()
	behind := false
	for p, g := range m.c.tracker.parts {
		behind = behind || p.member == m.index && g.behind()
	}
	m.c.mu.Unlock()
	if !behind {
		m.stats.clean(time.Now())
	}
}

// lagLoop asks for the ends of partitions. Polls report them too, but not while a partition is paused or its broker away.
func (m *member) lagLoop(ctx context.Context) {
	for sleep(ctx, time.Duration(m.cluster.LagInterval)) {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		at := map[string]int{}
		m.c.mu.Lock()
		for p := range m.c.tracker.parts {
			if p.member != m.index {
				continue
			}
			i, ok := at[p.topic]
			if !ok {
				i = len(req.Topics)
				at[p.topic] = i
				t := kmsg.NewListOffsetsRequestTopic()
				t.Topic = p.topic
				req.Topics = append(req.Topics, t)
			}
			part := kmsg.NewListOffsetsRequestTopicPartition()
			part.Partition, part.Timestamp = p.id, -1
			req.Topics[i].Partitions = append(req.Topics[i].Partitions, part)
		}
		m.c.mu.Unlock()
		if len(req.Topics) > 0 {
			m.askEnds(ctx, req)
		}
	}
}

func (m *member) askEnds(ctx context.Context, req *kmsg.ListOffsetsRequest) {
	m.ends(ctx, m.client, req, func(topic string, p int32, end int64) { m.stats.end(partition{m.index, topic, p}, end) })
}

// ends calls f with the ends of the partitions that answer.
func (m *member) ends(ctx context.Context, client *kgo.Client, req *kmsg.ListOffsetsRequest, f func(topic string, p int32, end int64)) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeMax)
	defer cancel()
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		m.log.Debug("the ends of partitions could not be asked for", "error", err)
		return
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 && p.Offset >= 0 {
				f(t.Topic, p.Partition, p.Offset)
			}
		}
	}
}

// failed logs work that has to be retried: at its first failure, and then each time its pause has doubled.
func (m *member) failed(j *job, err error, pause time.Duration) {
	if errors.Is(err, context.Canceled) {
		return // it was abandoned
	}
	kind := fault.KindOf(err)
	m.c.metrics.retries.WithLabelValues(m.cluster.Name, kind.String()).Inc()
	m.stats.failed(fmt.Sprintf("topic %s: %v", j.topic.topic, err))
	if n := j.attempts; n&(n-1) == 0 && !limits.Limited(err) { // a limit is not news: metrics report it
		m.log.Warn("records could not be written; they are tried again", "topic", j.topic.topic, "kind", kind.String(), "attempts", n+1, "pause", pause, "error", err)
	}
}

// clientLog passes on franz-go's messages, one level lower: it usually recovers from its errors by itself.
type clientLog struct{ log *slog.Logger }

// Level implements kgo.Logger.
func (l clientLog) Level() kgo.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

// duplicateMessages are the beginnings of messages that repeat with every try; brokers reports the same with more detail.
var duplicateMessages = []string{"unable to initialize sasl", "unable to request api versions", "unable to open connection", "read from broker"}

// Log implements kgo.Logger.
func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	for _, prefix := range duplicateMessages {
		if strings.HasPrefix(msg, prefix) {
			level = kgo.LogLevelDebug
		}
	}
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelWarn
	case kgo.LogLevelWarn:
		to = slog.LevelInfo
	}
	l.log.Log(context.Background(), to, "kafka client: "+msg, keyvals...)
}

// groupErrors receives the errors of joining and keeping a group.
type groupErrors struct{ m *member }

// OnGroupManageError implements kgo.HookGroupManageError.
func (g groupErrors) OnGroupManageError(err error) {
	g.m.stats.failed("group: " + err.Error())
	g.m.stats.joined(false)
	g.m.c.metrics.groupErrors.Inc()
	g.m.log.Warn("the group cannot be kept; it is joined again", "error", err)
}
