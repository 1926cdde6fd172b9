package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// unpacked counts the decompressed bytes of the batches in brokers' answers, until a poll returns their records.
//
//	answer ─▶ batch ─ Decompress ─▶ records ─┐
//	          batch ─ Decompress ─▶ records ─┼─▶ buffered by the client ─▶ poll: records in flight (shares)
//	          batch ─ errFull                │
//	          ╰── it and those behind it are fetched again
//	                    ╰───────── counted here ─────────╯
//
// The client unpacks a whole answer before it returns a record of it, and a broker counts compressed bytes: an answer of 1 MiB may hold a hundred batches that
// unpack to 64 MiB each. When too much is unpacked, the next batch is refused: the client returns the records before it, and asks for that batch again. This
// cannot block for ever: a batch is refused only while records wait for a poll, which needs no worker and no memory, or while it is not known yet that the
// client dropped some.
//
// Clients drop records of partitions that are paused or leave, and batches of which they return no record, without a report. These count as dropped:
//
//   - records of an earlier answer of a broker: the client has at most one of each, until it is polled or dropped;
//   - records that were unpacked a second before a poll that did not return them, or before the client held none.
type unpacked struct {
	mu  sync.Mutex
	all int64
	of  map[partition]fetched
}

// fetched are the bytes of a partition that are unpacked and not polled.
type fetched struct {
	bytes  int64
	broker int32
	at     time.Time // when a batch was last counted
}

// errFull refuses a batch. The client asks its broker for it again.
var errFull = errors.New("records that are unpacked have to be polled first")

// staleAfter is the age at which a partition is forgotten where its client holds none of its records.
const staleAfter = time.Second

// add counts a batch of a broker, and returns all that is counted.
func (u *unpacked) add(p partition, broker int32, n int64, now time.Time) (all int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[partition]fetched{}
	}
	u.all += n
	u.of[p] = fetched{u.of[p].bytes + n, broker, now}
	return u.all
}

// answered is called for each answer of a broker, before it is unpacked: the member's client holds none of its last one.
func (u *unpacked) answered(member int, broker int32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for p, f := range u.of {
		if p.member == member && f.broker == broker {
			u.forgetLocked(p)
		}
	}
}

// drained is called when a member's client holds no records, but for those that are unpacked just now.
func (u *unpacked) drained(member int, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for p, f := range u.of {
		if p.member == member && now.Sub(f.at) >= staleAfter {
			u.forgetLocked(p)
		}
	}
}

// forget is called when a poll has returned the records of a partition, or the client has dropped them.
func (u *unpacked) forget(p partition) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgetLocked(p)
}

// forgetTopics is forget for all partitions of topics.
func (u *unpacked) forgetTopics(member int, topics []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for p := range u.of {
		if p.member == member && slices.Contains(topics, p.topic) {
			u.forgetLocked(p)
		}
	}
}

func (u *unpacked) forgetLocked(p partition) {
	u.all -= u.of[p].bytes
	delete(u.of, p)
}

// held is the bytes that are unpacked and not polled.
func (u *unpacked) held() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all
}

// unpacker unpacks the batches of a member. It is its client's Decompressor, and its hooks.
type unpacker struct {
	m     *member
	codec kgo.Decompressor
}

// newUnpacker uses the client's own codecs, which franz-go makes with a bound of a batch for clients alone: a client that is never connected has them.
func newUnpacker(m *member) (*unpacker, error) {
	lender, err := kgo.NewClient(kgo.MaxDecompressBatchBytes(m.cluster.BatchBytesMax))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "batch_bytes_max of %d", m.cluster.BatchBytesMax)
	}
	defer lender.Close()
	codec, ok := lender.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
	if !ok {
		return nil, fault.Wrap(fmt.Errorf("this version of franz-go shows no decompressor"), fault.Internal, "kafka cluster %s", m.cluster.Name)
	}
	return &unpacker{m, codec}, nil
}

// Decompress implements kgo.Decompressor. Brokers are read side by side, so of each one batch more than the bound may be unpacked.
func (u *unpacker) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec != kgo.CodecNone && u.m.c.full() {
		return nil, errFull
	}
	return u.codec.Decompress(src, codec)
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead: a batch was unpacked.
func (u *unpacker) OnFetchBatchRead(b kgo.BrokerMetadata, topic string, p int32, batch kgo.FetchBatchMetrics) {
	c := u.m.c
	c.cover(c.raw() + c.polled.Load() + c.unpacked.add(partition{u.m.index, topic, p}, b.NodeID, int64(batch.UncompressedBytes), time.Now()))
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (u *unpacker) OnBrokerRead(b kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err == nil && kmsg.Key(key) == kmsg.Fetch {
		u.m.c.unpacked.answered(u.m.index, b.NodeID)
	}
}

// full reports whether the unpacked records that were not polled have reached the bound of records in flight. Readers of brokers call it for each batch, so it
// nearly always does without c.mu, for which workers contend.
func (c *Consumer) full() bool {
	if c.unpacked.held() < c.inFlightMax.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, unpacked := c.fetchedLocked()
	return unpacked > 0 && unpacked >= c.shares.max
}

// fetchedLocked returns the bytes of the records that clients have fetched and no poll has returned: by the clients' count, and as unpacked, which includes
// answers that are not yet unpacked whole.
func (c *Consumer) fetchedLocked() (buffered, unpacked int64) {
	for _, m := range c.members {
		if m.client == nil {
			continue
		}
		n := m.client.BufferedFetchBytes()
		if n == 0 {
			c.unpacked.drained(m.index, time.Now())
		}
		buffered += n
	}
	return buffered, c.unpacked.held()
}
