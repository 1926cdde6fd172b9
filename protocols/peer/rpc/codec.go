package rpc

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// message is the unit that gRPC carries for us: bytes, counted by references. The receiver frees it.
type message struct {
	data mem.BufferSlice
	last bool // of one that is sent: the answer ends with it

	// Of one that a server receives (arrivingStream).
	wait    *wait  // for its bytes, set by a caller that also waits for the message to begin; else nil
	length  int    // in bytes, also of one that is refused
	refused error  // of inserts: data is the header of the first record alone
	release func() // of short inserts: the message is not counted any more
}

// done releases a message of inserts that was received; the message may be of another call, and of another transport.
func (m *message) done() {
	if m.release != nil {
		m.release()
		m.release = nil
	}
}

// codec hands the bytes through.
type codec struct{}

// Name is the content subtype; both sides force this codec.
func (codec) Name() string { return "spillway" }

// Marshal passes the message to gRPC, which frees it when it is written.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fault.Errorf(fault.Internal, "a %T is no message", v)
	}
	data := m.data
	m.data = nil
	return data, nil
}

// Unmarshal holds a reference: gRPC frees the data when it returns.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fault.Errorf(fault.Internal, "a %T is no message", v)
	}
	data.Ref()
	m.data = data
	return nil
}

// whole returns the message as one buffer, to be freed by the caller; the message is consumed.
func (m *message) whole() mem.Buffer {
	b := m.data.MaterializeToBuffer(bufferPool)
	m.data.Free()
	m.data = nil
	return b
}

// bufferPool has sizes for messages of links and chunks: in gRPC's own pool a message of 40 KiB gets a whole MiB, and one frame of it keeps all of that in
// memory.
var bufferPool = mem.NewTieredBufferPool(bufferSizes...)

var bufferSizes = []int{256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128<<10 + 4<<10, linkMessageBytes + linkMessageBytes/2, chunkBytesMax + 4<<10, 512 << 10, 1<<20 + 4<<10, 2 << 20, 4 << 20, 8 << 20, 16 << 20, messageBytesMax}

// pooledBytes is the memory of a buffer of the pool for n bytes.
func pooledBytes(n int) int {
	for _, size := range bufferSizes {
		if n <= size {
			return size
		}
	}
	return n
}

// poolBufferOf is poolBuffer for a buffer of more than a KiB of which the memory is counted elsewhere: freed is called when the last reference is gone.
func poolBufferOf(n int, freed func()) (buf mem.Buffer, data []byte) {
	p := bufferPool.Get(n)
	return mem.NewBuffer(p, reporting(freed)), *p
}

// reporting reports a buffer that goes back to the pool.
type reporting func()

// Get implements mem.BufferPool.
func (reporting) Get(n int) *[]byte { return bufferPool.Get(n) }

// Put implements mem.BufferPool.
func (freed reporting) Put(p *[]byte) {
	bufferPool.Put(p)
	freed()
}

// poolBuffer gets a buffer of n bytes from the pool. data are its bytes: to be written until the buffer is passed on.
func poolBuffer(n int) (buf mem.Buffer, data []byte) {
	p := bufferPool.Get(n)
	return mem.NewBuffer(p, bufferPool), *p
}

// pooled copies b into a buffer of the pool.
func pooled(b []byte) (buf mem.Buffer, data []byte) {
	buf, data = poolBuffer(len(b))
	copy(data, b)
	return buf, data
}

func sendBuffer(to sender, b mem.Buffer) error { return to.SendMsg(&message{data: mem.BufferSlice{b}}) }

// A call is a stream in each direction of chunks that together are one protobuf message: a partition map of 256 MiB
// travels without either side allocating that much before the bytes arrive.
const chunkBytesMax = 256 << 10

// sender is the part of a gRPC stream that sends.
type sender interface{ SendMsg(m any) error }

// receiver is the part of a gRPC stream that receives.
type receiver interface{ RecvMsg(m any) error }

// sendChunks sends a protobuf message.
func sendChunks(to sender, m proto.Message) (sent int, err error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return 0, fault.Wrap(err, fault.Invalid, "encode %T", m)
	}
	rest := b
	for {
		n := min(len(rest), chunkBytesMax)
		if err := to.SendMsg(&message{data: mem.BufferSlice{mem.SliceBuffer(rest[:n])}, last: n == len(rest)}); err != nil {
			return len(b) - len(rest), err
		}
		if rest = rest[n:]; len(rest) == 0 {
			return len(b), nil
		}
	}
}

// receiveChunks receives a protobuf message of at most that many bytes, to the end of the stream. It calls take for the
// memory of each chunk before it keeps the chunk.
func receiveChunks(from receiver, most int, take func(int) error, m proto.Message) (got int, err error) {
	b, err := receiveBytes(from, most, take, m)
	if err == nil {
		err = unmarshal(b, m)
	}
	return len(b), err
}

func unmarshal(b []byte, m proto.Message) error {
	return fault.Wrap(proto.Unmarshal(b, m), fault.Corrupt, "decode %T", m)
}

// receiveBytes is receiveChunks without the decoding.
func receiveBytes(from receiver, most int, take func(int) error, m proto.Message) (b []byte, err error) {
	for {
		var c message
		if err := from.RecvMsg(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return b, nil
			}
			return b, err
		}
		n := c.data.Len()
		if len(b)+n > most {
			c.data.Free()
			return b, fault.Errorf(fault.TooLarge, "a %T of more than %d bytes", m, most)
		}
		if err := take(n); err != nil {
			c.data.Free()
			return b, err
		}
		at := len(b)
		b = append(b, make([]byte, n)...)
		c.data.CopyTo(b[at:])
		c.data.Free()
	}
}

// Methods. Inserts and Select carry raw messages, the others calls.
const (
	service = "spillway.peer.v1.Peer"

	methodPing            = "Ping"
	methodInserts         = "Inserts"
	methodSelect          = "Select"
	methodEvaluate        = "Evaluate"
	methodEvaluations     = "Evaluations"     // several of a query
	methodEvaluationsKept = "EvaluationsKept" // requests of Evaluations, one after the other
	methodReadsKept       = "ReadsKept"       // look-ups, one after the other
	methodLabelNames      = "LabelNames"
	methodLabelValues     = "LabelValues"
	methodExemplars       = "Exemplars"
	methodPutMetadata     = "PutMetadata"
	methodGetMetadata     = "GetMetadata"
	methodDeleteSeries    = "DeleteSeries"
	methodCleanTombstones = "CleanTombstones"
	methodStats           = "Stats"
	methodStagedStats     = "StagedStats"
	methodStagedTimes     = "StagedTimes"
	methodEndSlices       = "EndSlices"
	methodHighestRank     = "HighestRank"
	methodChange          = "Change"
	methodStore           = "Store"
	methodStoreOps        = "StoreOps" // Store of a file that is not whole and has a digest
	methodFetch           = "Fetch"
	methodGetRow          = "GetRow"
	methodListRows        = "ListRows"
	methodCommitRows      = "CommitRows"
	methodWatchRows       = "WatchRows"
	methodLink            = "Link"
	methodSnapshots       = "Snapshots"
)

func fullMethod(name string) string { return "/" + service + "/" + name }

// both is the form of every method: messages in both directions.
func both(name string) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ClientStreams: true, ServerStreams: true}
}
