package rpc

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A message of a link is a sequence of records, each whole. FORMAT.md draws them.

//	 0      1        4           8           12          16
//	 ├──────┼────────┼───────────┼───────────┼───────────┼─ head ─┬─ body ─┐
//	 │kind  │0 0 0   │head u32   │body u32   │CRC-32C u32│        │        │     the sum covers bytes 0 to 11 and the head
//	 └──────┴────────┴───────────┴───────────┴───────────┴────────┴────────┘
//
// An acknowledgement of a chain, ChainReport{Version: 3, Upto: 7.300, End: 7.301}, has no body, and behind the route in
// its head the bytes 03 07 ac 02 07 ad 02: each number a uvarint, a serial as epoch and sequence number.

// linkVersion is the version of links that this build speaks, linkOldest the lowest.
const (
	linkOldest  = 1
	linkVersion = 1
)

// linkType is the type of a link's record.
type linkType uint8

const (
	// Numbers are part of the format: none is given to another type later. Below 16 the link itself, from 16 on chains,
	// from 32 segments, from 40 comparisons, from 48 records with a body.
	linkHello  linkType = 1 // first, from both sides
	linkCredit linkType = 2
	linkPing   linkType = 3
	linkPong   linkType = 4
	linkAsk    linkType = 5
	linkGrant  linkType = 6
	linkKept   linkType = 7

	linkBegin  linkType = 16
	linkReport linkType = 17
	linkChPing linkType = 18
	linkChPong linkType = 19
	linkRefuse linkType = 20
	linkLeave  linkType = 21
	linkLeft   linkType = 22
	linkRest   linkType = 23
	linkRests  linkType = 24

	linkOffer   linkType = 32
	linkAccept  linkType = 33
	linkDecline linkType = 34
	linkCommit  linkType = 35
	linkAck     linkType = 36

	linkCompare  linkType = 40
	linkCompared linkType = 41

	linkFrame     linkType = 48 // the body is a log record, or the first part of one
	linkFramePart linkType = 49 // the body is the next part
	linkPiece     linkType = 50 // the body is a piece of a segment
)

// linkRecordLen is the length of a record before its head.
const linkRecordLen = 16

// linkHeadMax bounds a head: a segment's description is the largest thing in one.
const linkHeadMax = peer.LinkInfoBytesMax + 20*peer.LinkEndsMax + 4<<10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// linkRecord is a record as it lies in a message.
// head and body share the message's memory, with their capacities cut, so that an append to one copies. They are valid
// as long as the message is.
type linkRecord struct {
	kind linkType
	head []byte
	body []byte
}

// cutLinkRecord removes the first record from a message. Errors are Corrupt.
func cutLinkRecord(b []byte) (r linkRecord, rest []byte, err error) {
	if len(b) < linkRecordLen {
		return r, nil, fault.Errorf(fault.Corrupt, "a link's record ends after %d bytes, its header has %d", len(b), linkRecordLen)
	}
	head, body := uint64(binary.LittleEndian.Uint32(b[4:])), uint64(binary.LittleEndian.Uint32(b[8:]))
	// In 64 bits: both are below 2^32, so their sum cannot wrap around and pass.
	if head > linkHeadMax || head+body > uint64(len(b)-linkRecordLen) {
		return r, nil, fault.Errorf(fault.Corrupt, "a link's record of %d and %d bytes, where %d are left", head, body, len(b)-linkRecordLen)
	}
	end := linkRecordLen + int(head)
	if got, want := linkSum(b[:end]), binary.LittleEndian.Uint32(b[12:]); got != want {
		return r, nil, fault.Errorf(fault.Corrupt, "a link's record has checksum %08x, should have %08x", got, want)
	}
	if b[1]|b[2]|b[3] != 0 {
		return r, nil, fault.Errorf(fault.Corrupt, "a link's record begins with % x", b[:4])
	}
	r = linkRecord{linkType(b[0]), b[linkRecordLen:end:end], b[end : end+int(body) : end+int(body)]}
	return r, b[end+int(body):], nil
}

// linkSum covers the header without the sum itself, and the head. Bodies have checksums of their own.
// Frames have theirs as records of the log, and a segment is verified as a whole; a second sum over them would cost
// what the first does.
func linkSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[linkRecordLen:])
}

// beginLinkRecord appends the header of a record; endLinkRecord completes it when the head is there. A body of that many bytes
// follows.
func beginLinkRecord(dst []byte, kind linkType) []byte {
	return append(dst, byte(kind), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// from is where the record begins in b, so that several are built in one buffer. The body is not appended: it is sent
// from where it lies.
func endLinkRecord(b []byte, from, body int) []byte {
	r := b[from:]
	binary.LittleEndian.PutUint32(r[4:], uint32(len(r)-linkRecordLen))
	binary.LittleEndian.PutUint32(r[8:], uint32(body))
	binary.LittleEndian.PutUint32(r[12:], linkSum(r))
	return b
}

// linkGreeting is a hello with the settings of the link itself.
type linkGreeting struct {
	peer.LinkHello
	versionMin, versionMax uint8
	frameWindow            uint64 // bytes of frames that may be on their way to this side
	pieceWindow            uint64
}

func (h *linkGreeting) append(dst []byte) []byte {
	from := len(dst)
	dst = beginLinkRecord(dst, linkHello)
	dst = append(dst, h.versionMin, h.versionMax)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Capabilities))
	dst = binary.LittleEndian.AppendUint64(dst, h.Boot)
	dst = append(dst, h.Store[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, h.frameWindow)
	dst = binary.LittleEndian.AppendUint64(dst, h.pieceWindow)
	dst = appendText(dst, h.Server)
	return endLinkRecord(dst, from, 0)
}

// decodeGreeting reads a hello. It ignores bytes after the fields of this build, so that later builds can add some.
func decodeGreeting(b []byte) (h linkGreeting, err error) {
	r := headReader{b: b}
	h.versionMin, h.versionMax = r.byte(), r.byte()
	h.Capabilities = peer.Capabilities(r.u64())
	h.Boot = r.u64()
	copy(h.Store[:], r.take(len(h.Store)))
	h.frameWindow, h.pieceWindow = r.u64(), r.u64()
	h.Server = r.text(linkServerBytesMax)
	if r.bad || h.Server == "" {
		return h, errLinkHead(linkHello)
	}
	return h, nil
}

// linkServerBytesMax bounds a server's id.
const linkServerBytesMax = 255

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Epoch 7, sequence number 300: 07 ac 02, where 300 is 0x2c + 2·128, and the highest bit of ac says that another byte
// follows.
func appendSerial(dst []byte, s point.Serial) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(s.Epoch)), s.Seq)
}

func appendSegmentID(dst []byte, id point.SegmentID) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(id.Epoch)), id.Seq)
}

func appendEnds(dst []byte, ends []point.EpochEnd) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ends)))
	for _, e := range ends {
		dst = appendSerial(dst, point.Serial(e))
	}
	return dst
}

func appendRoute(dst []byte, r *peer.Route) []byte {
	dst = appendText(dst, r.Table)
	dst = binary.AppendUvarint(dst, uint64(r.Partition))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.From))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.To))
	return binary.AppendUvarint(dst, uint64(r.Epoch))
}

// appendLinkMessage appends the record of an urgent message. Errors are TooLarge.
func appendLinkMessage(dst []byte, r *peer.Route, m peer.LinkMessage) ([]byte, error) {
	if len(r.Table) > peer.LinkTableBytesMax {
		return dst, fault.Errorf(fault.TooLarge, "a table's name of %d bytes", len(r.Table))
	}
	from := len(dst)
	dst = beginLinkRecord(dst, 0)
	dst = appendRoute(dst, r)
	kind, dst, err := appendLinkHead(dst, m)
	if err != nil {
		return dst[:from], err
	}
	dst[from] = byte(kind)
	return endLinkRecord(dst, from, 0), nil
}

func appendLinkHead(dst []byte, m peer.LinkMessage) (linkType, []byte, error) {
	switch m := m.(type) {
	case *peer.ChainBegin:
		if len(m.Order) > peer.LinkMembersMax || len(m.Ends) > peer.LinkEndsMax {
			return 0, dst, fault.Errorf(fault.TooLarge, "a chain of %d placements with %d epochs", len(m.Order), len(m.Ends))
		}
		dst = binary.AppendUvarint(dst, m.Version)
		dst = binary.AppendUvarint(dst, uint64(len(m.Order)))
		for _, x := range m.Order {
			if len(x.Server) > linkServerBytesMax {
				return 0, dst, fault.Errorf(fault.TooLarge, "a server's id of %d bytes", len(x.Server))
			}
			dst = binary.LittleEndian.AppendUint64(dst, uint64(x.Placement))
			dst = append(dst, x.Store[:]...)
			dst = appendText(dst, x.Server)
		}
		return linkBegin, appendEnds(dst, m.Ends), nil
	case *peer.ChainReport:
		dst = binary.AppendUvarint(dst, m.Version)
		return linkReport, appendSerial(appendSerial(dst, m.Upto), m.End), nil
	case *peer.ChainPing:
		dst = binary.AppendUvarint(dst, m.Version)
		// Zigzag, as a time of a machine's clock may be negative: 1,000 is d0 0f, -1 is 01.
		dst = binary.AppendVarint(dst, int64(m.Sent))
		return linkChPing, appendSerial(appendSerial(dst, m.Own), m.End), nil
	case *peer.ChainPong:
		return linkChPong, binary.AppendVarint(binary.AppendVarint(dst, int64(m.Sent)), int64(m.For)), nil
	case *peer.ChainRefuse:
		return linkRefuse, appendSerial(dst, m.End), nil
	case *peer.ChainLeave:
		return linkLeave, binary.AppendVarint(dst, int64(m.Echo)), nil
	case *peer.ChainLeft:
		return linkLeft, dst, nil
	case *peer.ChainRest:
		dst = binary.AppendUvarint(dst, m.Version)
		dst = binary.AppendVarint(dst, int64(m.Sent))
		return linkRest, appendSerial(appendSerial(dst, m.Own), m.End), nil
	case *peer.ChainRests:
		return linkRests, binary.AppendVarint(dst, int64(m.Sent)), nil
	}
	return appendSegmentHead(dst, m)
}

func appendSegmentHead(dst []byte, m peer.LinkMessage) (linkType, []byte, error) {
	switch m := m.(type) {
	case *peer.SegmentOffer:
		if len(m.Ends) > peer.LinkEndsMax || len(m.Info) > peer.LinkInfoBytesMax {
			return 0, dst, fault.Errorf(fault.TooLarge, "an offer of %d epochs and a description of %d bytes", len(m.Ends), len(m.Info))
		}
		dst = binary.AppendUvarint(dst, m.Slot)
		dst = appendSegmentID(appendSegmentID(dst, m.ID), m.Base)
		dst = append(dst, bit(m.Major))
		dst = binary.AppendUvarint(dst, m.Size)
		dst = binary.LittleEndian.AppendUint64(dst, m.Checksum)
		dst = appendEnds(dst, m.Ends)
		return linkOffer, append(binary.AppendUvarint(dst, uint64(len(m.Info))), m.Info...), nil
	case *peer.SegmentAccept:
		return linkAccept, binary.AppendUvarint(binary.AppendUvarint(dst, m.Slot), m.Offset), nil
	case *peer.SegmentDecline:
		if len(m.Ends) > peer.LinkEndsMax {
			return 0, dst, fault.Errorf(fault.TooLarge, "an answer with %d epochs", len(m.Ends))
		}
		return linkDecline, appendEnds(append(binary.AppendUvarint(dst, m.Slot), byte(m.Reason)), m.Ends), nil
	case *peer.SegmentCommit:
		return linkCommit, binary.AppendUvarint(dst, m.Slot), nil
	case *peer.SegmentAck:
		return linkAck, appendSegmentID(binary.AppendUvarint(dst, m.Slot), m.ID), nil
	case *peer.CompareAsk:
		return linkCompare, appendSerial(appendSerial(dst, m.After), m.End), nil
	case *peer.CompareAnswer:
		dst = appendSerial(appendSerial(dst, m.After), m.End)
		dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, m.Segments), m.Log)
		return linkCompared, binary.AppendUvarint(dst, m.Frames), nil
	}
	return 0, dst, fault.Errorf(fault.Invalid, "a %T is no message of a link", m)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func errLinkHead(kind linkType) error {
	return fault.Errorf(fault.Corrupt, "a link's record of type %d is not what it should be", kind)
}

// decodeLinkMessage reads the head of an urgent message. Errors are Corrupt.
func decodeLinkMessage(kind linkType, head []byte, route *peer.Route, tables *tableNames) (m peer.LinkMessage, err error) {
	r := headReader{b: head}
	r.route(route, tables)
	switch kind {
	case linkBegin:
		m = r.begin()
	case linkReport:
		m = &peer.ChainReport{Version: r.uvarint(), Upto: r.serial(), End: r.serial()}
	case linkChPing:
		m = &peer.ChainPing{Version: r.uvarint(), Sent: time.Duration(r.varint()), Own: r.serial(), End: r.serial()}
	case linkChPong:
		m = &peer.ChainPong{Sent: time.Duration(r.varint()), For: time.Duration(r.varint())}
	case linkRefuse:
		m = &peer.ChainRefuse{End: r.serial()}
	case linkLeave:
		m = &peer.ChainLeave{Echo: time.Duration(r.varint())}
	case linkLeft:
		m = &peer.ChainLeft{}
	case linkRest:
		m = &peer.ChainRest{Version: r.uvarint(), Sent: time.Duration(r.varint()), Own: r.serial(), End: r.serial()}
	case linkRests:
		m = &peer.ChainRests{Sent: time.Duration(r.varint())}
	case linkOffer:
		m = r.offer()
	case linkAccept:
		m = &peer.SegmentAccept{Slot: r.uvarint(), Offset: r.uvarint()}
	case linkDecline:
		d := &peer.SegmentDecline{Slot: r.uvarint(), Reason: peer.DeclineReason(r.byte()), Ends: r.ends()}
		r.bad = r.bad || d.Reason < peer.DeclineExists || d.Reason > peer.DeclineNoSpace
		m = d
	case linkCommit:
		m = &peer.SegmentCommit{Slot: r.uvarint()}
	case linkAck:
		m = &peer.SegmentAck{Slot: r.uvarint(), ID: point.SegmentID(r.serial())}
	case linkCompare:
		m = &peer.CompareAsk{After: r.serial(), End: r.serial()}
	case linkCompared:
		m = &peer.CompareAnswer{After: r.serial(), End: r.serial(), Segments: r.u64(), Log: r.u64(), Frames: r.uvarint()}
	default:
		return nil, fault.Errorf(fault.Corrupt, "a link's record of type %d, which this build does not know", kind)
	}
	if r.bad || len(r.b) > 0 {
		return nil, errLinkHead(kind)
	}
	return m, nil
}

func (r *headReader) begin() *peer.ChainBegin {
	m := &peer.ChainBegin{Version: r.uvarint()}
	for range r.count(peer.LinkMembersMax) {
		x := peer.LinkMember{Placement: point.PlacementID(r.u64())}
		copy(x.Store[:], r.take(len(x.Store)))
		x.Server = r.text(linkServerBytesMax)
		m.Order = append(m.Order, x)
	}
	m.Ends = r.ends()
	return m
}

func (r *headReader) offer() *peer.SegmentOffer {
	m := &peer.SegmentOffer{Slot: r.uvarint(), ID: point.SegmentID(r.serial()), Base: point.SegmentID(r.serial())}
	major := r.byte()
	r.bad = r.bad || major > 1
	m.Major = major == 1
	m.Size, m.Checksum, m.Ends = r.uvarint(), r.u64(), r.ends()
	if b := r.take(r.count(peer.LinkInfoBytesMax)); len(b) > 0 {
		m.Info = append([]byte(nil), b...)
	}
	return m
}

// headReader reads a head until the first mistake, after which everything is zero.
type headReader struct {
	b   []byte
	bad bool
}

func (r *headReader) fail() { r.b, r.bad = nil, true }

func (r *headReader) take(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *headReader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *headReader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *headReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *headReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// count reads the number of items that follow, of at least a byte each.
func (r *headReader) count(most int) int {
	n := r.uvarint()
	if n > uint64(most) || n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *headReader) text(most int) string { return string(r.take(r.count(most))) }

func (r *headReader) serial() point.Serial {
	return point.Serial{Epoch: point.Epoch(r.uvarint()), Seq: r.uvarint()}
}

func (r *headReader) ends() (ends []point.EpochEnd) {
	for range r.count(peer.LinkEndsMax) {
		ends = append(ends, point.EpochEnd(r.serial()))
		if r.bad {
			return nil
		}
	}
	return ends
}

func (r *headReader) route(to *peer.Route, tables *tableNames) {
	to.Table = tables.name(r.take(r.count(peer.LinkTableBytesMax)))
	to.Partition = point.PartitionID(r.uvarint())
	to.From, to.To = point.PlacementID(r.u64()), point.PlacementID(r.u64())
	to.Epoch = point.Epoch(r.uvarint())
}

// tableNames returns strings of tables' names without allocating one for each message.
type tableNames struct{ names map[string]string }

// tableNamesMax bounds how many are kept.
const tableNamesMax = 1 << 12

func (t *tableNames) name(b []byte) string {
	if s, ok := t.names[string(b)]; ok {
		return s
	}
	if t.names == nil || len(t.names) >= tableNamesMax {
		t.names = map[string]string{}
	}
	s := string(b)
	t.names[s] = s
	return s
}
