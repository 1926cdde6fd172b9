package rpc

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/trace"
)

// A message of an insert stream is a sequence of records. FORMAT.md draws them.

// Versions of a stream's records: since the second an ack may report a stamp too far ahead, since the third a Stale answer may
// name the newest map, since the fourth an insert may be one of staging, since
// the fifth such an insert may say when it is due, since the sixth it may be of rows that another partition had, since the seventh an ack may report
// a stamp that is late, since the eighth an insert may be part of a trace, since the ninth series may be offered, since the tenth several inserts of
// staging may go together, and since the eleventh rows that another partition had name the leader that sends them.
const (
	streamOldest  = 1
	streamVersion = 11

	streamAhead    = 2
	streamMaps     = 3
	streamStaging  = 4
	streamDue      = 5
	streamInherit  = 6
	streamLate     = 7
	streamTraced   = 8
	streamOffers   = 9
	streamTogether = 10
	streamSlices   = 11
)

// recordType is the type of a record.
type recordType uint8

const (
	recordHello   recordType = 1 // first, from the gateway
	recordWelcome recordType = 2 // its answer
	recordDefine  recordType = 3
	recordInsert  recordType = 4
	recordAcks    recordType = 5
	recordOffer   recordType = 6 // as define, but series may be refused
	recordGroup   recordType = 7 // several inserts of staging
)

// recordLen is the length of a record before its payload.
const recordLen = 16

// Bounds of a stream. A record over them is refused before memory is allocated.
const (
	// messageBytesMax bounds one gRPC message: a log record of 32 MiB and its framing.
	messageBytesMax = 33 << 20
	tableBytesMax   = 1 << 10
)

// record is a record as it lies in a message.
//
//	0      1        4          8                16
//	│kind  │0 0 0   │length u32│number u64      │payload …
//
// An insert numbered 5 with a payload of 300 bytes begins 04 00 00 00  2c 01 00 00  05 00 00 00 00 00 00 00. The
// payload shares the message's memory.
type record struct {
	kind    recordType
	seq     uint64 // rises by one; of the records that are acked
	payload []byte
}

// cutRecord removes the first record from a message. Errors are Corrupt.
func cutRecord(b []byte) (r record, rest []byte, err error) {
	r, n, err := recordHead(b)
	if err != nil {
		return record{}, nil, err
	}
	if n > int64(len(b)-recordLen) {
		return record{}, nil, fault.Errorf(fault.Corrupt, "a record of %d bytes ends after %d", n, len(b)-recordLen)
	}
	end := recordLen + int(n)
	r.payload = b[recordLen:end:end]
	return r, b[end:], nil
}

// recordHead decodes the header of the record that a message begins with. bytes is the length of its payload. Errors are Corrupt.
func recordHead(b []byte) (r record, bytes int64, err error) {
	if len(b) < recordLen {
		return record{}, 0, fault.Errorf(fault.Corrupt, "a record ends after %d bytes, its header has %d", len(b), recordLen)
	}
	r.kind = recordType(b[0])
	if b[1]|b[2]|b[3] != 0 || r.kind < recordHello || r.kind > recordGroup {
		return record{}, 0, fault.Errorf(fault.Corrupt, "a record begins with % x, which says nothing", b[:4])
	}
	r.seq = binary.LittleEndian.Uint64(b[8:])
	return r, int64(binary.LittleEndian.Uint32(b[4:])), nil
}

// beginRecord appends the header of a record; endRecord writes its length when the payload, which begins at from, is there.
func beginRecord(dst []byte, kind recordType) (b []byte, from int) {
	dst = append(dst, byte(kind), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return dst, len(dst)
}

func endRecord(b []byte, from int) {
	binary.LittleEndian.PutUint32(b[from-recordLen+4:], uint32(len(b)-from))
}

// setSeq numbers the record that b begins with.
func setSeq(b []byte, seq uint64) { binary.LittleEndian.PutUint64(b[8:], seq) }

// hello opens a stream: the versions that the gateway supports, and the table to write into.
type hello struct {
	versionMin, versionMax uint8
	table                  string
}

func (h *hello) append(dst []byte) []byte {
	dst, from := beginRecord(dst, recordHello)
	dst = append(dst, h.versionMin, h.versionMax)
	dst = append(dst, h.table...)
	endRecord(dst, from)
	return dst
}

func decodeHello(b []byte) (hello, error) {
	if len(b) < 2 || len(b)-2 > tableBytesMax {
		return hello{}, fault.Errorf(fault.Corrupt, "a hello of %d bytes", len(b))
	}
	return hello{versionMin: b[0], versionMax: b[1], table: string(b[2:])}, nil
}

// negotiate chooses the version of a stream.
func negotiate(h hello) (uint8, error) {
	if h.versionMin > streamVersion || h.versionMax < streamOldest {
		return 0, fault.Errorf(fault.Unavailable, "the gateway speaks versions %d to %d of streams, this server %d to %d: upgrade the older of the two",
			h.versionMin, h.versionMax, streamOldest, streamVersion)
	}
	return min(streamVersion, h.versionMax), nil
}

// welcome answers a hello: the chosen version, and how much may be under way before acks must be received.
type welcome struct {
	version     uint8
	insertsMax  uint32
	windowBytes uint64
}

const welcomeLen = 16

func (w *welcome) append(dst []byte) []byte {
	dst, from := beginRecord(dst, recordWelcome)
	dst = append(dst, w.version, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, w.insertsMax)
	dst = binary.LittleEndian.AppendUint64(dst, w.windowBytes)
	endRecord(dst, from)
	return dst
}

func decodeWelcome(b []byte) (welcome, error) {
	if len(b) < welcomeLen {
		return welcome{}, fault.Errorf(fault.Corrupt, "a welcome of %d bytes, it has %d", len(b), welcomeLen)
	}
	w := welcome{version: b[0], insertsMax: binary.LittleEndian.Uint32(b[4:]), windowBytes: binary.LittleEndian.Uint64(b[8:])}
	if w.version < streamOldest || w.version > streamVersion {
		return welcome{}, fault.Errorf(fault.Unavailable, "the server chose version %d of streams, known are %d to %d", w.version, streamOldest, streamVersion)
	}
	return w, nil
}

// insertLen is the length of an insert's payload before its frame.
// Partition u64, sequence number of the map u64, level u8, the flags of staging and trace (atStagingDo and so on),
// nonce u64.
const insertLen = 32

// insertEncoder encodes inserts. It keeps scratch memory: pool it.
type insertEncoder struct {
	frame   frame.Frame
	encoder frame.Encoder
	out     []byte
	parent  trace.Parent // of the next insert; zero: it is part of no trace
}

// idsEnd is above every number of a stream: frames list the series defined, which the receiver already has here.
const idsEnd = 1<<32 - 1

// encode returns the record of an insert, without its number, in memory of the encoder. Errors are TooLarge and Invalid.
func (e *insertEncoder) encode(in *peer.Insert) ([]byte, error) {
	defer e.forget()
	if err := e.fill(in); err != nil {
		return nil, err
	}
	b, from, err := e.begin(recordInsert, in)
	if err != nil {
		return nil, err
	}
	if in.Staging != nil {
		b = appendDue(b, from, in.Staging)
	}
	b = e.encoder.Append(e.appendParent(b, from), &e.frame)
	return e.finish(b, from)
}

// encodeGroup is encode for inserts that go together.
func (e *insertEncoder) encodeGroup(all []*peer.Insert) ([]byte, error) {
	defer e.forget()
	if err := peer.CheckTogether(all); err != nil {
		return nil, err
	}
	b, from, err := e.begin(recordGroup, all[0])
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(b[from+atStagingNonce:], 0) // each has its own
	b = binary.LittleEndian.AppendUint16(e.appendParent(b, from), uint16(len(all)))
	for _, in := range all {
		if err := e.fill(in); err != nil {
			return nil, err
		}
		at := len(b)
		b = binary.LittleEndian.AppendUint64(b, in.Staging.Nonce)
		b = binary.LittleEndian.AppendUint64(b, uint64(in.Staging.Due))
		b = e.encoder.Append(append(b, 0, 0, 0, 0), &e.frame)
		binary.LittleEndian.PutUint32(b[at+16:], uint32(len(b)-at-memberLen))
		if len(b) > messageBytesMax {
			break
		}
	}
	return e.finish(b, from)
}

// memberLen is the length of an insert in a group before its frame: nonce u64, due u64, length of the frame u32.
const memberLen = 20

// fill makes the frame of an insert. Errors are TooLarge and Invalid.
func (e *insertEncoder) fill(in *peer.Insert) error {
	f := &e.frame
	f.Stamp, f.Kind, f.FirstDef = in.Stamp, frame.Rows, idsEnd
	f.IDs = slices.Grow(f.IDs[:0], len(in.IDs))[:len(in.IDs)]
	for i, id := range in.IDs {
		f.IDs[i] = point.DenseID(id)
	}
	f.Times, f.Values = in.Times, in.Values
	f.Hists, f.Exemplars = f.Hists[:0], f.Exemplars[:0]
	for _, h := range in.Hists {
		f.Hists = append(f.Hists, frame.HistRow{ID: point.DenseID(h.ID), Time: h.Time, H: h.H})
	}
	for _, x := range in.Exemplars {
		f.Exemplars = append(f.Exemplars, frame.ExemplarRow{ID: point.DenseID(x.ID), Time: x.Time, Value: x.Value, Labels: x.Labels})
	}
	return f.Check()
}

// begin begins a record with the fixed part of an insert and its holders. Errors are Invalid.
func (e *insertEncoder) begin(kind recordType, in *peer.Insert) (b []byte, from int, err error) {
	b, from = beginRecord(e.out[:0], kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(in.Partition))
	b = binary.LittleEndian.AppendUint64(b, in.MapSeq)
	// Zeros where staging and trace have nothing to say: builds that knew neither wrote and demanded these.
	b = append(b, byte(in.Level), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	if in.Staging != nil {
		if err := in.Staging.Validate(); err != nil {
			return nil, 0, err
		}
		b = appendStaging(b, from, in.Staging)
	}
	return b, from, nil
}

func (e *insertEncoder) appendParent(b []byte, from int) []byte {
	if e.parent == (trace.Parent{}) {
		return b
	}
	b[from+atTraced] = 1
	return append(b, e.parent[:]...)
}

func (e *insertEncoder) finish(b []byte, from int) ([]byte, error) {
	if len(b) > messageBytesMax {
		return nil, fault.Errorf(fault.TooLarge, "an insert of %d bytes, at most %d travel at once", len(b), messageBytesMax)
	}
	endRecord(b, from)
	e.out = b
	return b, nil
}

// forget drops the references to the caller's memory, and the trace.
// A pooled encoder would else keep the rows of a request alive, and its hold on labels, for as long as it lies in the
// pool.
func (e *insertEncoder) forget() {
	e.parent = trace.Parent{}
	clear(e.frame.Hists)
	clear(e.frame.Exemplars)
	e.frame.Times, e.frame.Values = nil, nil
}

// insertDecoder decodes inserts into memory of its own: pool it.
type insertDecoder struct {
	frame   frame.Frame
	decoder frame.Decoder
	in      peer.Insert // valid until the next decode
	parent  trace.Parent
}

// Places in an insert's payload of what belongs to staging, and to a trace.
const (
	atStagingDo    = 17
	atStagingDue   = 18 // 1: a due time follows the holders
	atTraced       = 19 // 1: the span that the insert comes from follows what belongs to staging
	atStagingFrom  = 20 // 1: the sender of a slice follows, of inherit
	atStagingNonce = 24
)

// appendStaging completes the insert with a payload that began at from: after the fixed part come the sender of a slice, or the holders of a frame that is staged.
func appendStaging(b []byte, from int, s *peer.Staging) []byte {
	b[from+atStagingDo] = byte(s.Do)
	binary.LittleEndian.PutUint64(b[from+atStagingNonce:], s.Nonce)
	if s.From != nil {
		b[from+atStagingFrom] = 1
		b = binary.LittleEndian.AppendUint64(b, uint64(s.From.Partition))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.From.Epoch))
		b = binary.LittleEndian.AppendUint64(b, uint64(s.From.Under))
	}
	if s.Do != peer.Stage {
		return b
	}
	b = append(b, byte(len(s.Holders)))
	for _, h := range s.Holders {
		b = append(append(b, byte(len(h))), h...)
	}
	return b
}

// appendDue appends the due time of an insert, behind its holders.
func appendDue(b []byte, from int, s *peer.Staging) []byte {
	if s.Due == 0 {
		return b
	}
	b[from+atStagingDue] = 1
	return binary.LittleEndian.AppendUint64(b, uint64(s.Due))
}

// sliceLen is the length of the sender of a slice: partition u64, its epoch u64, that of the heir's lease u64.
const sliceLen = 24

// cutStaging reads what belongs to staging, and returns the rest: the frame. Errors are Corrupt.
func (d *insertDecoder) cutStaging(b []byte) (rest []byte, err error) {
	do := peer.StagingDo(b[atStagingDo])
	rest = b[insertLen:]
	d.in.Staging = nil
	if do == 0 {
		return rest, nil
	}
	s := &peer.Staging{Do: do, Nonce: binary.LittleEndian.Uint64(b[atStagingNonce:])}
	switch {
	case b[atStagingFrom] == 0:
	case b[atStagingFrom] != 1 || len(rest) < sliceLen:
		return nil, fault.Errorf(fault.Corrupt, "the sender of a slice, with flag %d, ends early", b[atStagingFrom])
	default:
		s.From = &peer.Slice{Partition: point.PartitionID(binary.LittleEndian.Uint64(rest)), Epoch: point.Epoch(binary.LittleEndian.Uint64(rest[8:])), Under: point.Epoch(binary.LittleEndian.Uint64(rest[16:]))}
		rest = rest[sliceLen:]
	}
	if do == peer.Stage {
		short := fault.Errorf(fault.Corrupt, "the holders of a staged insert end early")
		if len(rest) == 0 {
			return nil, short
		}
		n := int(rest[0])
		for rest = rest[1:]; n > 0; n-- {
			if len(rest) == 0 || len(rest)-1 < int(rest[0]) {
				return nil, short
			}
			end := 1 + int(rest[0])
			s.Holders, rest = append(s.Holders, string(rest[1:end])), rest[end:]
		}
	}
	switch b[atStagingDue] {
	case 0:
	case 1:
		if len(rest) < 8 {
			return nil, fault.Errorf(fault.Corrupt, "the due time of a staged insert ends early")
		}
		if s.Due = point.Nanos(binary.LittleEndian.Uint64(rest)); s.Due == 0 {
			return nil, fault.Errorf(fault.Corrupt, "a staged insert with a due time of 0")
		}
		rest = rest[8:]
	default:
		return nil, fault.Errorf(fault.Corrupt, "a staged insert with flag %d", b[atStagingDue])
	}
	d.in.Staging = s
	return rest, fault.Wrap(s.Validate(), fault.Corrupt, "an insert")
}

// cutParent reads the span that an insert comes from, and returns the rest: the frame. Errors are Corrupt.
func (d *insertDecoder) cutParent(traced byte, b []byte) (rest []byte, err error) {
	d.parent = trace.Parent{}
	switch {
	case traced == 0:
		return b, nil
	case traced != 1:
		return nil, fault.Errorf(fault.Corrupt, "an insert whose trace is %d", traced)
	case len(b) < trace.ParentLen:
		return nil, fault.Errorf(fault.Corrupt, "the trace of an insert ends early")
	}
	return b[copy(d.parent[:], b):], nil
}

// cutHead reads the fields before the frame, and returns the rest, whose rows the caller books before it has them decoded. Nothing of b is kept. Errors are
// Corrupt.
func (d *insertDecoder) cutHead(b []byte) (rest []byte, err error) {
	if len(b) < insertLen {
		return nil, fault.Errorf(fault.Corrupt, "an insert of %d bytes", len(b))
	}
	in := &d.in
	in.Partition = point.PartitionID(binary.LittleEndian.Uint64(b))
	in.MapSeq = binary.LittleEndian.Uint64(b[8:])
	in.Level = point.Level(b[16])
	if in.Level > point.Received {
		return nil, fault.Errorf(fault.Corrupt, "an insert of %v", in.Level)
	}
	if rest, err = d.cutStaging(b); err != nil {
		return nil, err
	}
	return d.cutParent(b[atTraced], rest)
}

// decodeFrame reads the rows of an insert; nothing of b is kept. Errors are Corrupt.
func (d *insertDecoder) decodeFrame(b []byte) error {
	in, f := &d.in, &d.frame
	d.decoder.NoDefs = true
	if err := d.decoder.Decode(b, f); err != nil {
		return err
	}
	in.Stamp = f.Stamp
	in.IDs = slices.Grow(in.IDs[:0], len(f.IDs))[:len(f.IDs)]
	for i, id := range f.IDs {
		in.IDs[i] = point.SeriesID(id)
	}
	in.Times, in.Values = f.Times, f.Values
	clear(in.Hists)
	clear(in.Exemplars)
	in.Hists, in.Exemplars = in.Hists[:0], in.Exemplars[:0]
	for _, h := range f.Hists {
		in.Hists = append(in.Hists, point.HistRow{ID: point.SeriesID(h.ID), Time: h.Time, H: h.H})
	}
	for _, x := range f.Exemplars {
		in.Exemplars = append(in.Exemplars, point.ExemplarRow{ID: point.SeriesID(x.ID), Time: x.Time, Value: x.Value, Labels: x.Labels})
	}
	return nil
}

// decodedBytes is about the most memory that the rows of an insert need, with their form in package peer. rest begins with the frame; a damaged one needs none.
func decodedBytes(rest []byte) int64 {
	h, err := frame.Header(rest)
	if err != nil {
		return 0
	}
	const row, hist = 8, 48 // in package peer's form
	return h.DecodedBytes() + row*int64(h.Rows) + hist*int64(h.Hists)
}

// groupDecoder decodes inserts that go together.
type groupDecoder struct {
	head    insertDecoder
	count   int
	members []*insertDecoder // from the pool, until free
	all     []*peer.Insert   // valid until free
}

// cutHead reads the part before the inserts, and returns the rest. Errors are Corrupt.
func (d *groupDecoder) cutHead(b []byte) (rest []byte, err error) {
	b, err = d.head.cutHead(b)
	if err != nil {
		return nil, err
	}
	of := d.head.in.Staging
	if of == nil || of.Nonce != 0 || of.Due != 0 || len(b) < 2 {
		return nil, fault.Errorf(fault.Corrupt, "inserts that go together are of staging %v, and end early or are named once for all", of)
	}
	d.count = int(binary.LittleEndian.Uint16(b))
	if d.count > peer.TogetherMax { // before there is a decoder for each
		return nil, fault.Errorf(fault.Corrupt, "%d inserts together, 1 to %d may go together", d.count, peer.TogetherMax)
	}
	return b[2:], nil
}

// memberEnd is where the first insert of a group ends; false: it is cut off.
func memberEnd(b []byte) (end int, whole bool) {
	if len(b) < memberLen || uint64(len(b)-memberLen) < uint64(binary.LittleEndian.Uint32(b[16:])) {
		return 0, false
	}
	return memberLen + int(binary.LittleEndian.Uint32(b[16:])), true
}

// decodedMembers is decodedBytes of all inserts.
func (d *groupDecoder) decodedMembers(b []byte) (bytes int64) {
	for range d.count {
		end, whole := memberEnd(b)
		if !whole {
			break // nothing behind it is decoded
		}
		bytes += decodedBytes(b[memberLen:end])
		b = b[end:]
	}
	return bytes
}

// decodeMembers reads the inserts. Errors are Corrupt.
func (d *groupDecoder) decodeMembers(b []byte) ([]*peer.Insert, error) {
	of := d.head.in.Staging
	for n := d.count; len(d.all) < n; {
		end, whole := memberEnd(b)
		if !whole {
			return nil, fault.Errorf(fault.Corrupt, "inserts that go together end early, within number %d of %d", len(d.all)+1, n)
		}
		m := insertDecoders.Get().(*insertDecoder)
		d.members = append(d.members, m)
		m.in.Partition, m.in.MapSeq, m.in.Level = d.head.in.Partition, d.head.in.MapSeq, d.head.in.Level
		m.in.Staging = &peer.Staging{Do: of.Do, Holders: of.Holders, Nonce: binary.LittleEndian.Uint64(b), Due: point.Nanos(binary.LittleEndian.Uint64(b[8:])), From: of.From}
		if err := m.decodeFrame(b[memberLen:end]); err != nil {
			return nil, err
		}
		d.all, b = append(d.all, &m.in), b[end:]
	}
	if len(b) > 0 {
		return nil, fault.Errorf(fault.Corrupt, "%d bytes follow the last of %d inserts", len(b), d.count)
	}
	return d.all, fault.Wrap(peer.CheckTogether(d.all), fault.Corrupt, "inserts that go together")
}

// free gives the memory of the inserts back.
func (d *groupDecoder) free() {
	for _, m := range d.members {
		m.put()
	}
	d.members, d.all = nil, nil
}

// put gives a decoder back to the pool.
func (d *insertDecoder) put() {
	if d.kept() {
		insertDecoders.Put(d)
	}
}

// kept reports whether the decoder's memory is small enough to keep: one huge insert must not stay for ever.
func (d *insertDecoder) kept() bool {
	return cap(d.in.IDs) <= 1<<17 && cap(d.in.Hists) <= 1<<14 && cap(d.in.Exemplars) <= 1<<14
}

// kindCodes are the kinds on the wire; 0 is success. They never change.
var kindCodes = [...]fault.Kind{
	1: fault.Internal, 2: fault.Invalid, 3: fault.TooLarge, 4: fault.Throttled, 5: fault.Stale, 6: fault.Unavailable,
	7: fault.Corrupt, 8: fault.NotFound, 9: fault.Canceled, 10: fault.Denied,
}

// codeAhead is the ack of peer.NewAhead. Its message is the servers' time.
const (
	codeAhead = 11
	aheadLen  = 8
)

// codeMap is the ack of a Stale that names a map (peer.WithMap); the map follows the message.
const codeMap = 12

// codeLate is the ack of peer.NewLate. Its message is the stamp that a new one has to be above.
const codeLate = 13

// codeRefused is the ack of an offer of which series are refused (peer.Refused); their numbers follow the message.
const codeRefused = 14

func codeOf(k fault.Kind) byte {
	for code := 1; code < len(kindCodes); code++ {
		if kindCodes[code] == k {
			return byte(code)
		}
	}
	return 1
}

// textBytesMax bounds the message of an error on its way.
const textBytesMax = 2 << 10

// cutText makes a text of at most so many bytes, in UTF-8: protobuf does not encode another one, and gRPC then leaves out all that travels beside it, as the Kind.
func cutText(s string) string {
	const rest = "..."
	whole := len(s) <= textBytesMax
	s = strings.ToValidUTF8(s[:min(len(s), textBytesMax)], "\uFFFD")
	if whole && len(s) <= textBytesMax {
		return s
	}
	end := min(len(s), textBytesMax-len(rest))
	for end > 0 && end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + rest
}

// appendAck appends one ack: the record's number and its outcome.
func appendAck(dst []byte, seq uint64, err error) []byte {
	dst = binary.AppendUvarint(dst, seq)
	if err == nil {
		return append(dst, 0)
	}
	if newest, ok := peer.StampAbove(err); ok {
		dst = append(dst, codeLate, aheadLen)
		return binary.LittleEndian.AppendUint64(dst, uint64(newest))
	}
	if clock, ok := peer.NeedsStamp(err); ok {
		dst = append(dst, codeAhead, aheadLen)
		return binary.LittleEndian.AppendUint64(dst, uint64(clock))
	}
	if r, ok := peer.RefusedOf(err); ok {
		return appendRefused(dst, r)
	}
	code := codeOf(fault.KindOf(err))
	at, named := peer.MapOf(err)
	if named = named && kindCodes[code] == fault.Stale; named {
		code = codeMap
	}
	text := cutText(err.Error())
	dst = append(dst, code)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	dst = append(dst, text...)
	if named {
		dst = appendMapAt(dst, at)
	}
	return dst
}

// appendRefused appends the rest of the ack of an offer.
func appendRefused(dst []byte, r peer.Refused) []byte {
	text := cutText(r.Reason)
	dst = binary.AppendUvarint(append(dst, codeRefused), uint64(len(text)))
	dst = append(dst, text...)
	dst = binary.AppendUvarint(dst, uint64(len(r.IDs)))
	last := int64(-1)
	for _, id := range r.IDs {
		dst = binary.AppendVarint(dst, int64(id)-last-1)
		last = int64(id)
	}
	return dst
}

// cutRefused reads the numbers of refused series off the front. Errors are Corrupt.
func cutRefused(b []byte) (ids []point.SeriesID, rest []byte, err error) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count == 0 || count > definePartMax || count > uint64(len(b)-n) {
		return nil, nil, fault.Errorf(fault.Corrupt, "an ack of %d refused series ends early", count)
	}
	b, ids = b[n:], make([]point.SeriesID, 0, count)
	for last := int64(-1); uint64(len(ids)) < count; last = int64(ids[len(ids)-1]) {
		step, n := binary.Varint(b)
		if n <= 0 || step < -last-1 || step >= idsEnd-last-1 {
			return nil, nil, fault.Errorf(fault.Corrupt, "an ack of refused series names none after %d", last)
		}
		ids, b = append(ids, point.SeriesID(last+1+step)), b[n:]
	}
	return ids, b, nil
}

// appendMapAt appends a map that is Valid: transaction, number, servers.
func appendMapAt(dst []byte, at peer.MapAt) []byte {
	dst = append(dst, at.Txn[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, at.Seq)
	dst = append(dst, byte(len(at.Servers)))
	for _, s := range at.Servers {
		dst = append(append(dst, byte(len(s))), s...)
	}
	return dst
}

// cutMapAt reads a map off the front. Errors are Corrupt.
func cutMapAt(b []byte) (at peer.MapAt, rest []byte, err error) {
	const fixed = len(at.Txn) + 8 + 1
	if len(b) < fixed {
		return at, nil, fault.Errorf(fault.Corrupt, "acks end early")
	}
	copy(at.Txn[:], b)
	at.Seq = binary.LittleEndian.Uint64(b[len(at.Txn):])
	n := b[fixed-1]
	for b = b[fixed:]; n > 0; n-- {
		if len(b) == 0 || len(b)-1 < int(b[0]) {
			return at, nil, fault.Errorf(fault.Corrupt, "acks end early")
		}
		end := 1 + int(b[0])
		at.Servers, b = append(at.Servers, string(b[1:end])), b[end:]
	}
	if !at.Valid() {
		return at, nil, fault.Errorf(fault.Corrupt, "an ack that names map %d on %d servers", at.Seq, len(at.Servers))
	}
	return at, b, nil
}

// cutAck removes the first ack.
func cutAck(b []byte) (seq uint64, ack error, rest []byte, err error) {
	short := func() (uint64, error, []byte, error) {
		return 0, nil, nil, fault.Errorf(fault.Corrupt, "acks end early")
	}
	seq, n := binary.Uvarint(b)
	if n <= 0 || len(b) == n {
		return short()
	}
	code, b := b[n], b[n+1:]
	if code == 0 {
		return seq, nil, b, nil
	}
	if int(code) >= len(kindCodes) && code != codeAhead && code != codeMap && code != codeLate && code != codeRefused {
		return 0, nil, nil, fault.Errorf(fault.Corrupt, "an ack of kind %d", code)
	}
	length, n := binary.Uvarint(b)
	if n <= 0 || length > textBytesMax || length > uint64(len(b)-n) {
		return short()
	}
	b = b[n:]
	if code == codeAhead || code == codeLate {
		if length != aheadLen {
			return 0, nil, nil, fault.Errorf(fault.Corrupt, "an ack that a stamp is ahead, or late, of %d bytes", length)
		}
		if code == codeLate {
			newest := binary.LittleEndian.Uint64(b)
			if newest == 0 {
				return 0, nil, nil, fault.Errorf(fault.Corrupt, "an ack that a stamp is late, without one that is newer")
			}
			return seq, peer.NewLate(point.Stamp(newest)), b[length:], nil
		}
		return seq, peer.NewAhead(int64(binary.LittleEndian.Uint64(b))), b[length:], nil
	}
	if code == codeRefused {
		ids, rest, err := cutRefused(b[length:])
		return seq, peer.Refused{IDs: ids, Reason: string(b[:length])}.AsError(), rest, err
	}
	if code == codeMap {
		at, rest, err := cutMapAt(b[length:])
		return seq, peer.WithMap(fault.Errorf(fault.Stale, "%s", b[:length]), at), rest, err
	}
	return seq, peer.Answer(fault.Errorf(remote(kindCodes[code]), "%s", b[:length])), b[length:], nil
}
