package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A snapshot lasts as long as the stream that carries it, but not longer than snapshotIdleMax without a request or a piece. FORMAT.md draws its messages.
//
//	asker   version, what, partition, table ─▶          segment ─▶           segment ─▶         end of the stream: the snapshot is closed
//	server                                  ◀─ entry             ◀─ file              ◀─ file

const (
	snapshotVersion = 1

	ofPartition = 0 // in the first message
	ofStaging   = 1

	snapshotHeadBytes    = 1 + 1 + 8
	snapshotSegmentBytes = 8 + 8
	snapshotRequestMax   = 4 << 10
	// entryBytesMax bounds the catalogue entry of a placement: some 100,000 segments.
	entryBytesMax = 64 << 20
)

// Marks begin the messages of a server: an item is cut into pieces.
const (
	pieceMore = 0 // another one follows
	pieceLast = 1
)

func appendSnapshotRequest(what byte, table string, id point.PartitionID) []byte {
	b := []byte{snapshotVersion, what}
	b = binary.LittleEndian.AppendUint64(b, uint64(id))
	return append(b, table...)
}

// ofSnapshotRequest decodes the first message. Errors are Invalid.
func ofSnapshotRequest(b []byte) (what byte, table string, id point.PartitionID, err error) {
	if len(b) <= snapshotHeadBytes || b[0] != snapshotVersion || b[1] > ofStaging {
		return 0, "", 0, fault.Errorf(fault.Invalid, "not a request for a snapshot that this server knows")
	}
	return b[1], string(b[snapshotHeadBytes:]), point.PartitionID(binary.LittleEndian.Uint64(b[2:])), nil
}

// sendPieces sends an item. An error of r is returned as it is.
func sendPieces(to sender, r io.Reader, sent func(int)) error {
	for last := false; !last; {
		buf, data := poolBuffer(1 + chunkBytesMax)
		n, err := io.ReadFull(r, data[1:1+chunkBytesMax])
		if last = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !last {
			buf.Free()
			return err
		}
		piece, rest := data[:1+n], buf
		if piece[0] = pieceMore; last {
			piece[0] = pieceLast
		}
		if n < chunkBytesMax {
			rest, _ = pooled(piece)
			buf.Free()
		}
		if err := sendBuffer(to, rest); err != nil {
			return err
		}
		sent(1 + n)
	}
	return nil
}

// snapshots serves a snapshot.
func (s *Server) snapshots(ss grpc.ServerStream) error {
	storage, ok := s.deps.Storage.(peer.Snapshots)
	if !ok {
		return fault.Errorf(fault.Invalid, "this server makes no snapshots")
	}
	var request []byte
	if _, err := receiveMessage(s.awaited(ss), snapshotRequestMax, func(b []byte) error { request = append(request, b...); return nil }); err != nil {
		return received(ss.Context(), err)
	}
	what, table, id, err := ofSnapshotRequest(request)
	if err != nil {
		return err
	}
	w := &watchedStream{ServerStream: ss}
	w.moved()
	ended := make(chan error, 1)
	s.running.Go(func() { ended <- s.snapshot(w, storage, what, table, id) }) // until the handler returns, at the latest
	return w.wait(ended)
}

// snapshot serves a snapshot, or staged frames.
func (s *Server) snapshot(ss grpc.ServerStream, storage peer.Snapshots, what byte, table string, id point.PartitionID) error {
	counter := s.metrics.sent.WithLabelValues(methodSnapshots)
	sent := func(n int) { counter.Add(float64(n)) }
	if what == ofStaging {
		return storage.StagedFrames(ss.Context(), table, func(f []byte) error {
			return received(ss.Context(), sendPieces(ss, bytes.NewReader(f), sent))
		})
	}
	snap, err := storage.OpenSnapshot(ss.Context(), table, id)
	if err != nil {
		return err
	}
	return errors.Join(received(ss.Context(), serveSnapshot(ss, snap, sent)), snap.Close())
}

// snapshotIdleMax is how long a snapshot stays open although its asker requests no file and reads no piece: its segments are not deleted meanwhile, and a backup whose
// place hangs would fill the disk. Longer than a backup waits for its own bound of bytes a second. While a segment is copied for another partition it has no
// snapshot open.
const snapshotIdleMax = 30 * time.Minute

// watchedStream notes when a message was last received or sent.
type watchedStream struct {
	grpc.ServerStream
	last atomic.Pointer[time.Time]
}

func (w *watchedStream) moved() {
	now := time.Now()
	w.last.Store(&now)
}

// RecvMsg implements grpc.ServerStream.
func (w *watchedStream) RecvMsg(m any) error {
	defer w.moved()
	return w.ServerStream.RecvMsg(m)
}

// SendMsg implements grpc.ServerStream.
func (w *watchedStream) SendMsg(m any) error {
	defer w.moved()
	return w.ServerStream.SendMsg(m)
}

// wait returns what ended has, or an Unavailable once nothing has moved for snapshotIdleMax. The handler returns then, and with it the stream and all waits on it end.
func (w *watchedStream) wait(ended <-chan error) error {
	for {
		left := snapshotIdleMax - time.Since(*w.last.Load())
		if left <= 0 {
			return fault.Errorf(fault.Unavailable, "nothing of a snapshot was asked for or taken for %v: it is closed, so that its segments can be deleted; see whether the place of the backup hangs, and back up again", snapshotIdleMax)
		}
		timer := time.NewTimer(left)
		select {
		case err := <-ended:
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// serveSnapshot sends the entry, then each segment that is asked for.
func serveSnapshot(ss grpc.ServerStream, snap peer.Snapshot, sent func(int)) error {
	if err := sendPieces(ss, bytes.NewReader(snap.Entry()), sent); err != nil {
		return err
	}
	for {
		var id point.SegmentID
		_, err := receiveMessage(ss, snapshotRequestMax, func(b []byte) error {
			if len(b) != snapshotSegmentBytes {
				return fault.Errorf(fault.Invalid, "a request for a segment has %d bytes", len(b))
			}
			id = point.SegmentID{Epoch: point.Epoch(binary.LittleEndian.Uint64(b)), Seq: binary.LittleEndian.Uint64(b[8:])}
			return nil
		})
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f, err := snap.Open(id)
		if err != nil {
			return err
		}
		if err := errors.Join(sendPieces(ss, f, sent), f.Close()); err != nil {
			return err
		}
	}
}

var _ peer.Snapshots = (*Peer)(nil)

// errNoSnapshots names the remedy for a server of an older build.
func errNoSnapshots(err error) error {
	if errors.Is(err, errOlder) {
		return fault.Wrap(err, fault.Invalid, "the server cannot be backed up before it is upgraded")
	}
	return err
}

// snapshot is one that a peer holds.
type snapshot struct {
	p      *Peer
	l      *line
	ctx    context.Context // the asker's: it decides what an error means
	cs     grpc.ClientStream
	cancel context.CancelCauseFunc
	entry  []byte
	err    error
}

// openSnapshots begins a stream with its request.
func (p *Peer) openSnapshots(ctx context.Context, request []byte) (*snapshot, error) {
	l, err := p.enter()
	if err != nil {
		return nil, err
	}
	s := &snapshot{p: p, l: l, ctx: ctx}
	if s.cs, s.cancel, err = p.open(ctx, l, methodSnapshots); err == nil {
		buf, _ := pooled(request)
		if err = sendBuffer(s.cs, buf); err == nil || errors.Is(err, io.EOF) { // at EOF the receiver has the reason
			return s, nil
		}
		s.cancel(nil)
	}
	l.leave()
	return nil, p.fault(ctx, l, methodSnapshots, err)
}

// OpenSnapshot implements peer.Snapshots.
func (p *Peer) OpenSnapshot(ctx context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	s, err := p.openSnapshots(ctx, appendSnapshotRequest(ofPartition, table, id))
	if err != nil {
		return nil, err
	}
	if s.entry, err = s.whole(); err != nil {
		if errors.Is(err, io.EOF) {
			err = fault.Errorf(fault.Unavailable, "%s: a snapshot ended before it began", p.addr)
		}
		_ = s.Close()
		return nil, errNoSnapshots(err)
	}
	return s, nil
}

// whole receives an item. It is io.EOF where the stream ends instead.
func (s *snapshot) whole() (b []byte, err error) {
	for last := false; !last; {
		begun := len(b) > 0
		err := s.piece(func(piece []byte, end bool) error {
			if last = end; len(b)+len(piece) > entryBytesMax {
				return fault.Errorf(fault.TooLarge, "an item of a snapshot of more than %d bytes", entryBytesMax)
			}
			b = append(b, piece...)
			return nil
		})
		if errors.Is(err, io.EOF) && !begun {
			return nil, io.EOF
		}
		if err != nil {
			return nil, s.fault(err)
		}
	}
	return b, nil
}

// piece receives one. Errors are gRPC's or ours, as they come.
func (s *snapshot) piece(give func(b []byte, last bool) error) error {
	n, err := receiveMessage(s.cs, 1+chunkBytesMax, func(b []byte) error {
		if len(b) == 0 || b[0] > pieceLast {
			return fault.Errorf(fault.Corrupt, "a piece of a snapshot without its mark")
		}
		return give(b[1:], b[0] == pieceLast)
	})
	s.p.settings.Metrics.received.WithLabelValues(methodSnapshots).Add(float64(n))
	return err
}

// fault gives an error its kind. A stream that ended within an item broke.
func (s *snapshot) fault(err error) error {
	if errors.Is(err, io.EOF) {
		err = fault.Errorf(fault.Unavailable, "a snapshot ended within a file")
	}
	s.err = s.p.fault(s.ctx, s.l, methodSnapshots, err)
	return s.err
}

// Entry implements peer.Snapshot.
func (s *snapshot) Entry() []byte { return s.entry }

// Open implements peer.Snapshot.
func (s *snapshot) Open(id point.SegmentID) (io.ReadCloser, error) {
	buf, data := poolBuffer(snapshotSegmentBytes)
	binary.LittleEndian.PutUint64(data, uint64(id.Epoch))
	binary.LittleEndian.PutUint64(data[8:], id.Seq)
	if err := sendBuffer(s.cs, buf); err != nil && !errors.Is(err, io.EOF) {
		return nil, s.fault(err)
	}
	return &snapshotFile{s: s}, nil
}

// Close implements peer.Snapshot.
func (s *snapshot) Close() error {
	if s.cancel != nil {
		s.cancel(nil)
		s.cancel = nil
		s.l.leave()
		s.p.settings.Metrics.calls.WithLabelValues(methodSnapshots, kindLabel(s.err)).Inc()
	}
	return nil
}

// snapshotFile is the file of a segment as its pieces come.
type snapshotFile struct {
	s    *snapshot
	rest []byte
	last bool
}

// Read implements io.Reader.
func (f *snapshotFile) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.last {
			return 0, io.EOF
		}
		if err := f.s.piece(func(b []byte, last bool) error {
			f.rest, f.last = append(f.rest[:0], b...), last
			return nil
		}); err != nil {
			return 0, f.s.fault(err)
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Close implements io.Closer. Unread bytes are skipped, so that another file may follow.
func (f *snapshotFile) Close() error {
	for !f.last && f.s.err == nil {
		if err := f.s.piece(func(_ []byte, last bool) error { f.last = last; return nil }); err != nil {
			return f.s.fault(err)
		}
	}
	return nil
}

// StagedFrames implements peer.Snapshots.
func (p *Peer) StagedFrames(ctx context.Context, table string, give func([]byte) error) error {
	s, err := p.openSnapshots(ctx, appendSnapshotRequest(ofStaging, table, 0))
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		b, err := s.whole()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = give(b)
		}
		if err != nil {
			return errNoSnapshots(err)
		}
	}
}
