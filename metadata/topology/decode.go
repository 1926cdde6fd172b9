package topology

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// ringRuleMax bounds the text of a ring rule, in bytes.
const ringRuleMax = point.RingLabelsMax * (point.LabelNameMax + 8)

// serversMax bounds the servers that one map or transaction names.
const serversMax = 1 << 16

// Decode reads the output of Encode, and the JSON of version 1, and checks it. It keeps none of b. Errors are Corrupt.
func Decode(b []byte) (*Map, error) {
	if len(b) > 0 && b[0] == '{' {
		return decodeJSON(b)
	}
	body, err := open(b, contentMap)
	if err != nil {
		return nil, fault.Annotate(err, "partition map")
	}
	m := &Map{}
	var d decoder
	var ps []*Partition
	// Partitions name servers by their place in the list of field 6, which Encode writes before them: a partition that comes before the list is refused.
	d.each(body, func(f field) {
		switch f.key {
		case bytesKey(1):
			m.Table = d.str(f, NameMax)
		case varintKey(2):
			m.Seq = f.u
		case bytesKey(3):
			m.Config = d.config(f.b)
		case varintKey(4):
			m.NextID = point.PartitionID(f.u)
		case bytesKey(5):
			if d.room(len(m.Layouts), LayoutsMax, "layouts") {
				m.Layouts = append(m.Layouts, d.layout(f.b))
			}
		case bytesKey(6):
			d.server(f)
		case bytesKey(7):
			if d.room(len(ps), PartitionsMax, "partitions") {
				ps = append(ps, d.partition(f.b))
			}
		default:
			d.unknown(f)
		}
	})
	if d.err != nil {
		return nil, fault.Annotate(d.err, "partition map")
	}
	if m.Config != m.Config.normal() {
		return nil, fault.Errorf(fault.Corrupt, "partition map: no replicas")
	}
	return m.of(ps)
}

// of gives the map its partitions, and checks it.
func (m *Map) of(ps []*Partition) (*Map, error) {
	boxes, numbers := make([]entry[box], len(ps)), make([]entry[number], len(ps))
	for i, p := range ps {
		boxes[i], numbers[i] = entry[box]{p.box(), p}, entry[number]{number(p.ID), p}
		m.total.add(p)
	}
	slices.SortFunc(numbers, func(a, b entry[number]) int { return a.key.compare(b.key) })
	for i := 1; i < len(numbers); i++ {
		if numbers[i].key == numbers[i-1].key {
			return nil, fault.Errorf(fault.Corrupt, "table %q: id %s is used twice", m.Table, name(numbers[i].p.ID))
		}
	}
	m.byTime, m.byID = build(boxes), build(numbers)
	m.stops, m.shelves = stops(&m.byTime), shelves(&m.byID)
	return m, m.Check()
}

// DecodeOps reads the output of EncodeOps. It checks form and bounds; Apply checks whether the ops make sense. It keeps none
// of b. Errors are Corrupt.
func DecodeOps(b []byte) ([]Op, error) {
	body, err := open(b, contentOps)
	if err != nil {
		return nil, fault.Annotate(err, "transaction")
	}
	var d decoder
	var ops []Op
	d.each(body, func(f field) {
		switch f.key {
		case bytesKey(1):
			d.server(f)
		case bytesKey(2):
			if d.room(len(ops), OpsMax, "ops") {
				ops = append(ops, d.op(f.b))
			}
		default:
			d.unknown(f)
		}
	})
	if d.err != nil {
		return nil, fault.Annotate(d.err, "transaction")
	}
	return ops, nil
}

// open checks an envelope and returns its content.
func open(b []byte, want content) ([]byte, error) {
	switch {
	case len(b) < headerBytes || string(b[:4]) != magic:
		return nil, fault.Errorf(fault.Corrupt, "%d bytes that do not begin with %s and a header", len(b), magic)
	case b[4] != version:
		return nil, fault.Errorf(fault.Corrupt, "version %d; this build reads up to version %d", b[4], version)
	case content(b[5]) != want || b[6] != 0 || b[7] != 0:
		return nil, fault.Errorf(fault.Corrupt, "content %d, want %d", b[5], want)
	case len(b) > EncodedMax || uint64(binary.LittleEndian.Uint32(b[8:])) != uint64(len(b)-headerBytes):
		return nil, fault.Errorf(fault.Corrupt, "%d bytes where the header says %d", len(b)-headerBytes, binary.LittleEndian.Uint32(b[8:]))
	case binary.LittleEndian.Uint32(b[12:]) != sum(b):
		return nil, fault.Errorf(fault.Corrupt, "the checksum does not match")
	}
	return b[headerBytes:], nil
}

// decoder reads messages until its first error: values read after it are of no use. Bounds are checked before memory is allocated, since the
// bytes may come from a file or a server that is broken.
type decoder struct {
	servers []ServerID
	err     error
}

// field is one field of a message; u or b is set.
type field struct {
	key uint64 // number and wire type, as in its tag
	u   uint64
	b   []byte
}

func varintKey(n protowire.Number) uint64 { return protowire.EncodeTag(n, protowire.VarintType) }
func fixedKey(n protowire.Number) uint64  { return protowire.EncodeTag(n, protowire.Fixed64Type) }
func bytesKey(n protowire.Number) uint64  { return protowire.EncodeTag(n, protowire.BytesType) }

func (d *decoder) fail(form string, args ...any) {
	if d.err == nil {
		d.err = fault.Errorf(fault.Corrupt, form, args...)
	}
}

// unknown refuses what protobuf would skip: two servers that understand an op differently would make two maps of one.
func (d *decoder) unknown(f field) {
	d.fail("a field %d of type %d, which this build does not know: a newer one wrote it", f.key>>3, f.key&7)
}

func (d *decoder) room(n, most int, what string) bool {
	if n >= most {
		d.fail("more than %d %s", most, what)
	}
	return d.err == nil
}

// each calls f with every field until there is an error. The bytes of a field are part of b: kept ones are copied.
func (d *decoder) each(b []byte, f func(field)) {
	for len(b) > 0 && d.err == nil {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			d.fail("a broken tag")
			return
		}
		b = b[n:]
		x := field{key: protowire.EncodeTag(num, typ)}
		switch typ {
		case protowire.VarintType:
			x.u, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			x.u, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			x.b, n = protowire.ConsumeBytes(b)
		default:
			n = -1
		}
		if n < 0 {
			d.fail("a broken field %d", num)
			return
		}
		b = b[n:]
		f(x)
	}
}

func (d *decoder) str(f field, most int) string {
	if len(f.b) > most || !utf8.Valid(f.b) {
		d.fail("a string of %d bytes, at most %d of UTF-8 are possible", len(f.b), most)
		return ""
	}
	return string(f.b)
}

func (d *decoder) flag(f field) bool {
	if f.u > 1 {
		d.fail("a flag that is %d", f.u)
	}
	return f.u == 1
}

func (d *decoder) small(f field) uint32 {
	if f.u > math.MaxUint32 {
		d.fail("%d is too much for field %d", f.u, f.key>>3)
	}
	return uint32(f.u)
}

func (d *decoder) server(f field) {
	if d.room(len(d.servers), serversMax, "servers") {
		d.servers = append(d.servers, ServerID(d.str(f, NameMax)))
	}
}

// decodePacked reads numbers, packed. Each ends with the only one of its bytes that is below 0x80, so they can be counted before there is memory for them.
func decodePacked[T ~uint32 | ~uint64](d *decoder, f field, most int) []T {
	n := 0
	for _, c := range f.b {
		if c < 0x80 {
			n++
		}
	}
	if n > most {
		d.fail("%d numbers, at most %d are possible", n, most)
		return nil
	}
	out := make([]T, 0, n)
	for b := f.b; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || uint64(T(v)) != v {
			d.fail("a broken number in field %d", f.key>>3)
			return nil
		}
		out, b = append(out, T(v)), b[n:]
	}
	return out
}

func (d *decoder) placement(b []byte) (p Placement) {
	server := uint64(0)
	d.each(b, func(f field) {
		switch f.key {
		case fixedKey(1):
			p.ID = point.PlacementID(f.u)
		case varintKey(2):
			server = f.u
		default:
			d.unknown(f)
		}
	})
	if server >= uint64(len(d.servers)) {
		d.fail("server %d of %d", server, len(d.servers))
		return p
	}
	p.Server = d.servers[server]
	return p
}

func (d *decoder) addPlacement(ps []Placement, b []byte) []Placement {
	if !d.room(len(ps), PlacementsMax, "placements of a partition") {
		return ps
	}
	return append(ps, d.placement(b))
}

func (d *decoder) partition(b []byte) *Partition {
	p := &Partition{}
	d.each(b, func(f field) {
		switch f.key {
		case varintKey(1):
			p.ID = point.PartitionID(f.u)
		case fixedKey(2):
			p.PointLo = f.u
		case fixedKey(3):
			p.PointHi = f.u
		case fixedKey(4):
			p.TimeLo = int64(f.u)
		case fixedKey(5):
			p.TimeHi = int64(f.u)
		case bytesKey(6):
			p.Placements = d.addPlacement(p.Placements, f.b)
		case bytesKey(7):
			p.Joining = d.addPlacement(p.Joining, f.b)
		case varintKey(8):
			if f.u > uint64(Unload) {
				d.fail("a state %d that this build does not know", f.u)
			}
			p.State = State(f.u)
		case bytesKey(9):
			s := d.split(f.b)
			p.Split = &s
		case bytesKey(10):
			p.Into = decodePacked[point.PartitionID](d, f, heirsMax)
		case varintKey(11):
			p.Incomplete = d.flag(f)
		default:
			d.unknown(f)
		}
	})
	p.Placements, p.Joining = slices.Clip(p.Placements), slices.Clip(p.Joining)
	return p
}

func (d *decoder) split(b []byte) (s Split) {
	d.each(b, func(f field) {
		switch f.key {
		case bytesKey(1):
			d.each(f.b, func(f field) {
				switch f.key {
				case varintKey(1):
					s.At.ByTime = d.flag(f)
				case fixedKey(2):
					s.At.Ring = f.u
				case fixedKey(3):
					s.At.Time = int64(f.u)
				default:
					d.unknown(f)
				}
			})
		case bytesKey(2):
			s.Low = d.child(f.b)
		case bytesKey(3):
			s.High = d.child(f.b)
		default:
			d.unknown(f)
		}
	})
	return s
}

func (d *decoder) child(b []byte) (c Child) {
	d.each(b, func(f field) {
		switch f.key {
		case varintKey(1):
			c.ID = point.PartitionID(f.u)
		case bytesKey(2):
			c.Placements = d.addPlacement(c.Placements, f.b)
		default:
			d.unknown(f)
		}
	})
	return c
}

func (d *decoder) config(b []byte) (c Config) {
	d.each(b, func(f field) {
		switch f.key {
		case varintKey(1):
			c.Retention = time.Duration(f.u)
		case varintKey(2):
			c.PartitionWidth = time.Duration(f.u)
		case varintKey(3):
			c.Replicas = int(d.small(f))
		case bytesKey(4):
			c.Smear = d.smear(f.b)
		case varintKey(5):
			c.InSyncMin = int(d.small(f))
		case bytesKey(6):
			c.InSyncWas = d.inSyncWas(f.b)
		case bytesKey(7):
			c.Ring = d.ring(f)
		default:
			d.unknown(f)
		}
	})
	return c
}

func (d *decoder) ring(f field) point.RingRule {
	r, err := point.ParseRingRule(d.str(f, ringRuleMax))
	if err != nil {
		d.fail("%v", err)
	}
	return r
}

func (d *decoder) inSyncWas(b []byte) (w InSyncWas) {
	d.each(b, func(f field) {
		switch f.key {
		case varintKey(1):
			w.Before = point.PartitionID(f.u)
		case varintKey(2):
			w.Least = int(d.small(f))
		case varintKey(3):
			w.Most = int(d.small(f))
		case varintKey(4):
			w.Fewest = int(d.small(f))
		default:
			d.unknown(f)
		}
	})
	return w
}

func (d *decoder) smear(b []byte) (r smear.Rule) {
	d.each(b, func(f field) {
		switch f.key {
		case varintKey(1):
			r.Mode = smear.Mode(min(f.u, math.MaxUint8)) // Check refuses an unknown mode
		case varintKey(2):
			r.Threshold = int64(f.u)
		case varintKey(3):
			r.Window = int64(f.u)
		case varintKey(4):
			r.WindowMax = int64(f.u)
		case varintKey(5):
			r.Near = int64(f.u)
		case varintKey(6):
			r.Kafka = smear.Kafka(min(f.u, math.MaxUint8)) // as Mode
		default:
			d.unknown(f)
		}
	})
	return r
}

func (d *decoder) layout(b []byte) (l Layout) {
	d.each(b, func(f field) {
		switch f.key {
		case fixedKey(1):
			l.From = int64(f.u)
		case bytesKey(2):
			l.Weights = decodePacked[uint32](d, f, WeightsMax)
		case bytesKey(3):
			if !d.room(len(l.Ranges), ColumnsMax, "ranges of the ring") {
				return
			}
			var r Range
			d.each(f.b, func(f field) {
				switch f.key {
				case fixedKey(1):
					r.Lo = f.u
				case varintKey(2):
					r.Column = d.small(f)
				default:
					d.unknown(f)
				}
			})
			l.Ranges = append(l.Ranges, r)
		default:
			d.unknown(f)
		}
	})
	return l
}

// op reads the one field of an Op.
func (d *decoder) op(b []byte) (op Op) {
	d.each(b, func(f field) {
		if op != nil {
			d.fail("two ops in the place of one")
			return
		}
		if f.key&7 != uint64(protowire.BytesType) {
			d.unknown(f)
			return
		}
		op = d.opOf(opKind(f.key>>3), f)
	})
	if op == nil {
		d.fail("no op where one should be")
	}
	return op
}

// args are the fields that ops have.
type args struct {
	now, closed point.Nanos
	at, low     point.PartitionID
	id          point.PlacementID
	placement   Placement
	child       Child
	ids         []point.PartitionID
	partitions  []Partition
	split       Split
	flag        bool
	by, reason  string
	config      Config
	layout      Layout
}

// opOf reads an op by the fields of its kind. The two tables list them, as topology.proto does.
func (d *decoder) opOf(k opKind, whole field) Op {
	r := opReader{decoder: d, whole: whole}
	if op := r.ofPartitions(k); op != nil {
		return op
	}
	if op := r.ofPlacements(k); op != nil {
		return op
	}
	d.unknown(whole)
	return nil
}

// opReader reads the fields of one op.
type opReader struct {
	*decoder
	a     args
	whole field
}

type fields = map[uint64]func(field)

func (r *opReader) read(of fields) {
	r.each(r.whole.b, func(f field) {
		if g := of[f.key]; g != nil {
			g(f)
		} else {
			r.unknown(f)
		}
	})
}

func partitionID(to *point.PartitionID) func(field) {
	return func(f field) { *to = point.PartitionID(f.u) }
}

func nanos(to *point.Nanos) func(field) { return func(f field) { *to = int64(f.u) } }

func (r *opReader) list(most int) func(field) {
	return func(f field) { r.a.ids = decodePacked[point.PartitionID](r.decoder, f, most) }
}

func (r *opReader) one(f field) {
	if r.room(len(r.a.partitions), PartitionsMax, "partitions") {
		r.a.partitions = append(r.a.partitions, *r.partition(f.b))
	}
}

// ofPartitions reads an op that makes, splits, merges or drops partitions, or configures the table; nil: it is of another kind.
func (r *opReader) ofPartitions(k opKind) Op {
	switch k {
	case kindCreate:
		r.read(fields{bytesKey(1): r.one})
		return Create{r.a.partitions}
	case kindPresplit:
		r.read(fields{fixedKey(1): nanos(&r.a.now), bytesKey(2): r.list(PartitionsMax), bytesKey(3): r.one})
		return Presplit{r.a.now, r.a.ids, r.a.partitions}
	case kindSplitBegin:
		r.read(fields{varintKey(1): partitionID(&r.a.at), bytesKey(2): func(f field) { r.a.split = r.split(f.b) }})
		return SplitBegin{r.a.at, r.a.split}
	case kindSplitFinalize:
		r.read(fields{varintKey(1): partitionID(&r.a.at), varintKey(2): partitionID(&r.a.low)})
		return SplitFinalize{r.a.at, r.a.low}
	case kindSplitAbort:
		r.read(fields{varintKey(1): partitionID(&r.a.at), varintKey(2): partitionID(&r.a.low)})
		return SplitAbort{r.a.at, r.a.low}
	case kindDrop:
		r.read(fields{bytesKey(1): r.list(PartitionsMax)})
		return Drop{r.a.ids}
	case kindUnloadFinal:
		r.read(fields{varintKey(1): partitionID(&r.a.at)})
		return UnloadFinal{r.a.at}
	case kindMerge:
		r.read(fields{bytesKey(1): r.list(MergeMax), bytesKey(2): func(f field) { r.a.child = r.child(f.b) }, fixedKey(3): nanos(&r.a.closed)})
		return Merge{r.a.ids, r.a.child, r.a.closed}
	case kindSetConfig:
		r.read(fields{bytesKey(1): func(f field) { r.a.config = r.config(f.b) }, varintKey(2): func(f field) { r.a.flag = r.flag(f) }})
		r.a.config.InSyncWas = InSyncWas{} // a map has it
		return SetConfig{r.a.config, r.a.flag}
	case kindSetColumns:
		r.read(fields{fixedKey(1): nanos(&r.a.now), bytesKey(2): func(f field) { r.a.layout = r.layout(f.b) }})
		return SetColumns{r.a.now, r.a.layout}
	case kindExpire:
		r.read(fields{fixedKey(1): nanos(&r.a.now)})
		return Expire{r.a.now}
	}
	return nil
}

// ofPlacements reads an op that changes the placements of a partition; nil: it is of another kind.
func (r *opReader) ofPlacements(k opKind) Op {
	id := func(f field) { r.a.id = point.PlacementID(f.u) }
	placement := func(f field) { r.a.placement = r.placement(f.b) }
	switch k {
	case kindJoin:
		r.read(fields{varintKey(1): partitionID(&r.a.at), bytesKey(2): placement})
		return Join{r.a.at, r.a.placement}
	case kindJoinFinalize:
		r.read(fields{varintKey(1): partitionID(&r.a.at), fixedKey(2): id})
		return JoinFinalize{r.a.at, r.a.id}
	case kindRemove:
		r.read(fields{varintKey(1): partitionID(&r.a.at), fixedKey(2): id})
		return Remove{r.a.at, r.a.id}
	case kindUnjoin:
		r.read(fields{varintKey(1): partitionID(&r.a.at), fixedKey(2): id, varintKey(3): func(f field) { r.a.flag = r.flag(f) }})
		return Unjoin{r.a.at, r.a.id, r.a.flag}
	case kindForceJoin:
		r.read(fields{varintKey(1): partitionID(&r.a.at), bytesKey(2): placement,
			bytesKey(3): func(f field) { r.a.by = r.str(f, NameMax) }, bytesKey(4): func(f field) { r.a.reason = r.str(f, NameMax) }})
		return ForceJoin{r.a.at, r.a.placement, r.a.by, r.a.reason}
	}
	return nil
}

// decodeJSON reads version 1, which the first standalone directories hold.
func decodeJSON(b []byte) (*Map, error) {
	var s struct {
		V          int               `json:"v"`
		Table      string            `json:"table"`
		Seq        uint64            `json:"seq"`
		Config     Config            `json:"config"`
		NextID     point.PartitionID `json:"next_id"`
		Partitions []*struct {
			ID         point.PartitionID `json:"id"`
			PointLo    uint64            `json:"point_lo"`
			PointHi    uint64            `json:"point_hi"`
			TimeLo     point.Nanos       `json:"time_lo"`
			TimeHi     point.Nanos       `json:"time_hi"`
			Placements []Placement       `json:"placements"`
		} `json:"partitions"`
	}
	if len(b) > EncodedMax {
		return nil, fault.Errorf(fault.Corrupt, "partition map of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "partition map")
	}
	if s.V != 1 {
		return nil, fault.Errorf(fault.Corrupt, "partition map of version %d in JSON; this build reads version 1 so", s.V)
	}
	m := &Map{Table: s.Table, Seq: s.Seq, Config: s.Config.normal(), NextID: s.NextID}
	var ps []*Partition
	for _, p := range s.Partitions {
		if p == nil {
			return nil, fault.Errorf(fault.Corrupt, "partition map: a partition is null")
		}
		ps = append(ps, &Partition{ID: p.ID, PointLo: p.PointLo, PointHi: p.PointHi, TimeLo: p.TimeLo, TimeHi: p.TimeHi, Placements: p.Placements})
	}
	return m.of(ps)
}
