package topology

import (
	"encoding/binary"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/smear"
)

//go:generate protoc --go_out=testdata/topologypb --go_opt=paths=source_relative topology.proto

// The bytes are those of topology.proto in an envelope (FORMAT.md). They are written by hand: the generated code promises
// the same bytes only within one build, and servers compare checksums across builds (C06); and here every size is checked
// before memory is allocated. The tests read and write them with the generated code too.

const (
	magic       = "SPTM"
	version     = 2 // version 1 was JSON, without an envelope
	headerBytes = 16
	// EncodedMax bounds an encoded map and an encoded transaction, in bytes.
	EncodedMax = 512 << 20
)

// content is the kind of content in an envelope.
type content byte

const (
	contentMap content = 1
	contentOps content = 2
)

// opKind is the op's field number in the message Op.
type opKind uint32

const (
	kindCreate opKind = 1 + iota
	kindPresplit
	kindSplitBegin
	kindSplitFinalize
	kindSplitAbort
	kindJoin
	kindJoinFinalize
	kindUnjoin
	kindRemove
	kindDrop
	kindUnloadFinal
	kindMerge
	kindSetConfig
	kindSetColumns
	kindExpire
	kindForceJoin
)

var kindNames = [...]string{"", "create", "presplit", "split begin", "split finalize", "split abort", "join", "join finalize", "unjoin",
	"remove", "drop", "unload final", "merge", "set config", "set columns", "expire", "force join"}

// String gives the kind's name for people.
func (k opKind) String() string { return kindNames[k] }

func (Create) kind() opKind        { return kindCreate }
func (Presplit) kind() opKind      { return kindPresplit }
func (SplitBegin) kind() opKind    { return kindSplitBegin }
func (SplitFinalize) kind() opKind { return kindSplitFinalize }
func (SplitAbort) kind() opKind    { return kindSplitAbort }
func (Join) kind() opKind          { return kindJoin }
func (JoinFinalize) kind() opKind  { return kindJoinFinalize }
func (Unjoin) kind() opKind        { return kindUnjoin }
func (Remove) kind() opKind        { return kindRemove }
func (Drop) kind() opKind          { return kindDrop }
func (UnloadFinal) kind() opKind   { return kindUnloadFinal }
func (Merge) kind() opKind         { return kindMerge }
func (SetConfig) kind() opKind     { return kindSetConfig }
func (SetColumns) kind() opKind    { return kindSetColumns }
func (Expire) kind() opKind        { return kindExpire }
func (ForceJoin) kind() opKind     { return kindForceJoin }

// Encode gives the map's stored form: the same bytes for the same map, everywhere.
func (m *Map) Encode() []byte {
	e := encoder{b: make([]byte, 0, 96*m.Len()+1024), servers: map[ServerID]uint64{}}
	// The partitions first, though they come last: they find out which servers the list before them has, in which order.
	for p := range m.All() {
		e.msg(7, func() { e.partition(p) })
	}
	partitions := e.b
	e.b = make([]byte, headerBytes, len(partitions)+1024+16*len(e.names))
	e.str(1, m.Table)
	e.num(2, m.Seq)
	e.msg(3, func() { e.config(m.Config) })
	e.num(4, uint64(m.NextID))
	for i := range m.Layouts {
		e.msg(5, func() { e.layout(&m.Layouts[i]) })
	}
	e.list(6, e.names)
	return envelope(append(e.b, partitions...), contentMap)
}

// EncodeOps gives the form in which a transaction is sent and stored.
func EncodeOps(ops []Op) []byte {
	e := encoder{servers: map[ServerID]uint64{}}
	for _, op := range ops {
		e.msg(2, func() { e.msg(protowire.Number(op.kind()), func() { op.encode(&e) }) })
	}
	body := e.b
	e.b = make([]byte, headerBytes, len(body)+1024)
	e.list(1, e.names)
	return envelope(append(e.b, body...), contentOps)
}

// envelope fills in the header, for which b has room.
func envelope(b []byte, c content) []byte {
	copy(b, magic)
	b[4], b[5] = version, byte(c)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-headerBytes))
	binary.LittleEndian.PutUint32(b[12:], sum(b))
	return b
}

// sum covers all bytes but itself.
func sum(b []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli) // one table of the package, made once
	return crc32.Update(crc32.Checksum(b[:12], t), t, b[headerBytes:])
}

// encoder writes fields in the order of their numbers and leaves out zeros, as protobuf does.
type encoder struct {
	b       []byte
	servers map[ServerID]uint64
	names   []ServerID // in the order of their first use
}

func (e *encoder) num(n protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, n, protowire.VarintType), v)
	}
}

func (e *encoder) fixed(n protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendFixed64(protowire.AppendTag(e.b, n, protowire.Fixed64Type), v)
	}
}

func (e *encoder) flag(n protowire.Number, v bool) { e.num(n, protowire.EncodeBool(v)) }

func (e *encoder) str(n protowire.Number, s string) {
	if s != "" {
		e.b = protowire.AppendString(protowire.AppendTag(e.b, n, protowire.BytesType), s)
	}
}

// list writes names, the empty one too: others are counted from there, until Apply refuses it.
func (e *encoder) list(n protowire.Number, names []ServerID) {
	for _, s := range names {
		e.b = protowire.AppendString(protowire.AppendTag(e.b, n, protowire.BytesType), string(s))
	}
}

// msg writes a message; f writes its fields. It leaves one byte for the length, which is enough for nearly all, and moves the fields behind a longer one.
func (e *encoder) msg(n protowire.Number, f func()) {
	e.b = append(protowire.AppendTag(e.b, n, protowire.BytesType), 0)
	from := len(e.b)
	f()
	size := uint64(len(e.b) - from)
	if more := protowire.SizeVarint(size) - 1; more > 0 {
		e.b = append(e.b, make([]byte, more)...)
		copy(e.b[from+more:], e.b[from:])
	}
	protowire.AppendVarint(e.b[:from-1], size)
}

func encodePacked[T ~uint32 | ~uint64](e *encoder, n protowire.Number, vs []T) {
	if len(vs) > 0 {
		e.msg(n, func() {
			for _, v := range vs {
				e.b = protowire.AppendVarint(e.b, uint64(v))
			}
		})
	}
}

// server returns the place of a server in the list, at its end if it is new: the order of first use, which is the same wherever the same map is encoded.
func (e *encoder) server(s ServerID) uint64 {
	i, ok := e.servers[s]
	if !ok {
		i = uint64(len(e.names))
		e.servers[s], e.names = i, append(e.names, s)
	}
	return i
}

func (e *encoder) placement(n protowire.Number, p Placement) {
	e.msg(n, func() {
		e.fixed(1, uint64(p.ID))
		e.num(2, e.server(p.Server))
	})
}

func (e *encoder) placements(n protowire.Number, ps []Placement) {
	for _, p := range ps {
		e.placement(n, p)
	}
}

func (e *encoder) partition(p *Partition) {
	e.num(1, uint64(p.ID))
	e.fixed(2, p.PointLo)
	e.fixed(3, p.PointHi)
	e.fixed(4, uint64(p.TimeLo))
	e.fixed(5, uint64(p.TimeHi))
	e.placements(6, p.Placements)
	e.placements(7, p.Joining)
	e.num(8, uint64(p.State))
	if p.Split != nil {
		e.msg(9, func() { e.split(p.Split) })
	}
	encodePacked(e, 10, p.Into)
	e.flag(11, p.Incomplete)
}

func (e *encoder) split(s *Split) {
	e.msg(1, func() {
		e.flag(1, s.At.ByTime)
		e.fixed(2, s.At.Ring)
		e.fixed(3, uint64(s.At.Time))
	})
	e.msg(2, func() { e.child(s.Low) })
	e.msg(3, func() { e.child(s.High) })
}

func (e *encoder) child(c Child) {
	e.num(1, uint64(c.ID))
	e.placements(2, c.Placements)
}

func (e *encoder) config(c Config) {
	e.num(1, uint64(c.Retention))
	e.num(2, uint64(c.PartitionWidth))
	e.num(3, uint64(c.Replicas))
	if c.Smear != (smear.Rule{}) {
		e.msg(4, func() { e.smear(c.Smear) })
	}
	e.num(5, uint64(c.InSyncMin))
	if w := c.InSyncWas; w != (InSyncWas{}) {
		e.msg(6, func() {
			e.num(1, uint64(w.Before))
			e.num(2, uint64(w.Least))
			e.num(3, uint64(w.Most))
			e.num(4, uint64(w.Fewest))
		})
	}
	e.str(7, c.Ring.String())
}

func (e *encoder) smear(r smear.Rule) {
	e.num(1, uint64(r.Mode))
	e.num(2, uint64(r.Threshold))
	e.num(3, uint64(r.Window))
	e.num(4, uint64(r.WindowMax))
	e.num(5, uint64(r.Near))
	e.num(6, uint64(r.Kafka))
}

func (e *encoder) layout(l *Layout) {
	e.fixed(1, uint64(l.From))
	encodePacked(e, 2, l.Weights)
	for _, r := range l.Ranges {
		e.msg(3, func() {
			e.fixed(1, r.Lo)
			e.num(2, uint64(r.Column))
		})
	}
}

func (o Create) encode(e *encoder) { e.partitions(1, o.Partitions) }

func (e *encoder) partitions(n protowire.Number, ps []Partition) {
	for i := range ps {
		e.msg(n, func() { e.partition(&ps[i]) })
	}
}

func (o Presplit) encode(e *encoder) {
	e.fixed(1, uint64(o.Now))
	encodePacked(e, 2, o.Replace)
	e.partitions(3, o.Partitions)
}

func (o SplitBegin) encode(e *encoder) {
	e.num(1, uint64(o.Partition))
	e.msg(2, func() { e.split(&o.Split) })
}

func (o SplitFinalize) encode(e *encoder) {
	e.num(1, uint64(o.Partition))
	e.num(2, uint64(o.Low))
}

func (o SplitAbort) encode(e *encoder) { SplitFinalize(o).encode(e) }

func (o Join) encode(e *encoder) {
	e.num(1, uint64(o.Partition))
	e.placement(2, o.Placement)
}

func (o JoinFinalize) encode(e *encoder) {
	e.num(1, uint64(o.Partition))
	e.fixed(2, uint64(o.Placement))
}

func (o Unjoin) encode(e *encoder) {
	JoinFinalize{o.Partition, o.Placement}.encode(e)
	e.flag(3, o.Lost)
}

func (o Remove) encode(e *encoder) { JoinFinalize(o).encode(e) }

func (o Drop) encode(e *encoder) { encodePacked(e, 1, o.IDs) }

func (o UnloadFinal) encode(e *encoder) { e.num(1, uint64(o.Partition)) }

func (o Merge) encode(e *encoder) {
	encodePacked(e, 1, o.Partitions)
	e.msg(2, func() { e.child(o.Into) })
	e.fixed(3, uint64(o.ClosedBefore))
}

func (o SetConfig) encode(e *encoder) {
	o.Config.InSyncWas = InSyncWas{} // each map has its own
	e.msg(1, func() { e.config(o.Config) })
	e.flag(2, o.Notes)
}

func (o SetColumns) encode(e *encoder) {
	e.fixed(1, uint64(o.Now))
	e.msg(2, func() { e.layout(&o.Layout) })
}

func (o Expire) encode(e *encoder) { e.fixed(1, uint64(o.Now)) }

func (o ForceJoin) encode(e *encoder) {
	e.num(1, uint64(o.Partition))
	e.placement(2, o.Placement)
	e.str(3, o.By)
	e.str(4, o.Reason)
}
