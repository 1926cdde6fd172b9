package topology

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/smear"
)

// Digest is a checksum of a map's content. Two maps with the same digest have the same bytes when they are encoded; a
// digest does not cover the encoding itself. Never 0.
//
// It is kept up to date by every transaction at the price of the partitions that the transaction touches, so that servers
// compare maps of 100,000 partitions without writing them down: the sum, modulo 2^64, of a hash of each partition, hashed
// together with the map's other fields (FORMAT.md).
func (m *Map) Digest() uint64 {
	b := make([]byte, 0, 256)
	b = digestString(b, m.Table)
	b = digestNumbers(b, m.Seq, uint64(m.Config.Retention), uint64(m.Config.PartitionWidth))
	b = digestReplicas(b, &m.Config)
	b = digestNumbers(b, uint64(m.NextID))
	b = digestNumbers(b, uint64(len(m.Layouts)))
	for i := range m.Layouts {
		l := &m.Layouts[i]
		b = digestNumbers(b, uint64(l.From), uint64(len(l.Weights)), uint64(len(l.Ranges)))
		for _, w := range l.Weights {
			b = digestNumbers(b, uint64(w))
		}
		for _, r := range l.Ranges {
			b = digestNumbers(b, r.Lo, uint64(r.Column))
		}
	}
	b = digestNumbers(b, uint64(m.Len()), m.total.sum)
	return max(xxhash.Sum64(b), 1)
}

// Marks beside the number of replicas: of a table with a rule for smearing, of one with settings for its in-sync lists, of one with a ring rule, and of one whose rows
// wait somewhere else than in staging, which follow.
const (
	smears = 1 << 32
	inSync = 1 << 33
	ringBy = 1 << 34
	kafka  = 1 << 35
)

func digestReplicas(b []byte, c *Config) []byte {
	n, r, w := uint64(c.Replicas), &c.Smear, &c.InSyncWas
	if *r != (smear.Rule{}) {
		n |= smears
	}
	if c.InSyncMin != 0 || *w != (InSyncWas{}) {
		n |= inSync
	}
	if !c.Ring.IsZero() {
		n |= ringBy
	}
	if r.Kafka != smear.KafkaStage {
		n |= kafka
	}
	b = digestNumbers(b, n) // without a mark as ever
	if n&smears != 0 {
		b = digestNumbers(b, uint64(r.Mode), uint64(r.Threshold), uint64(r.Window), uint64(r.WindowMax), uint64(r.Near))
	}
	if n&inSync != 0 {
		b = digestNumbers(b, uint64(c.InSyncMin), uint64(w.Before), uint64(w.Least), uint64(w.Most), uint64(w.Fewest))
	}
	if n&ringBy != 0 {
		b = digestString(b, c.Ring.String())
	}
	if n&kafka != 0 {
		b = digestNumbers(b, uint64(r.Kafka))
	}
	return b
}

// EncodedSize estimates the length of Encode: it is not less than that, and at most some 16 MiB more. It costs nothing.
func (m *Map) EncodedSize() int {
	const rest = headerBytes + 2*NameMax + serversMax*(NameMax+4)
	layouts := 0
	for i := range m.Layouts {
		layouts += 32 + 5*len(m.Layouts[i].Weights) + 24*len(m.Layouts[i].Ranges)
	}
	return rest + layouts + m.total.bytes
}

// EncodedBytes is about the length of Encode, without the servers' names. It costs nothing.
func (m *Map) EncodedBytes() int { return headerBytes + m.total.bytes }

// total sums up all partitions of a map. Transactions update it by the partitions they add and remove.
type total struct {
	sum   uint64 // of the partitions' hashes, modulo 2^64
	bytes int    // at least the size of the partitions in Encode
}

func (c *total) add(p *Partition) {
	var buf [512]byte
	b := appendDigest(buf[:0], p)
	c.sum += xxhash.Sum64(b)
	c.bytes += encodedMax(p)
}

func (c *total) remove(p *Partition) {
	var buf [512]byte
	b := appendDigest(buf[:0], p)
	c.sum -= xxhash.Sum64(b)
	c.bytes -= encodedMax(p)
}

// encodedMax bounds the size of a partition in Encode.
func encodedMax(p *Partition) int {
	const partition, split, placement, id = 72, 64, 17, 10
	n := partition + placement*(len(p.Placements)+len(p.Joining)) + id*len(p.Into)
	if p.Split != nil {
		n += split + placement*(len(p.Split.Low.Placements)+len(p.Split.High.Placements))
	}
	return n
}

// appendDigest appends the bytes of a partition that its hash is made of.
func appendDigest(b []byte, p *Partition) []byte {
	flags := uint64(p.State) << 2
	if p.Incomplete {
		flags |= 1
	}
	if p.Split != nil {
		flags |= 2
	}
	b = digestNumbers(b, uint64(p.ID), p.PointLo, p.PointHi, uint64(p.TimeLo), uint64(p.TimeHi), flags)
	b = digestPlacements(b, p.Placements)
	b = digestPlacements(b, p.Joining)
	b = digestNumbers(b, uint64(len(p.Into)))
	for _, id := range p.Into {
		b = digestNumbers(b, uint64(id))
	}
	if s := p.Split; s != nil {
		byTime := uint64(0)
		if s.At.ByTime {
			byTime = 1
		}
		b = digestNumbers(b, byTime, s.At.Ring, uint64(s.At.Time), uint64(s.Low.ID))
		b = digestPlacements(b, s.Low.Placements)
		b = digestNumbers(b, uint64(s.High.ID))
		b = digestPlacements(b, s.High.Placements)
	}
	return b
}

func digestPlacements(b []byte, ps []Placement) []byte {
	b = digestNumbers(b, uint64(len(ps)))
	for _, p := range ps {
		b = digestString(digestNumbers(b, uint64(p.ID)), string(p.Server))
	}
	return b
}

func digestNumbers(b []byte, vs ...uint64) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func digestString(b []byte, s string) []byte { return append(digestNumbers(b, uint64(len(s))), s...) }
