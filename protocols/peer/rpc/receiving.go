package rpc

import "github.com/spillwaydb/spillway/protocols/fault"

// receiving counts the bytes of requests from when they come until they are answered: Settings.RequestBytesMax bounds
// them all, and smallRequestsMax those of reads and look-ups, so that maps, which keep a cluster running, always find room.
// Requests of up to alwaysMax are counted, and never refused: pings, rows of administrators and most reads pass beside large ones.
type receiving struct {
	s     *Server
	small bool // a read or a look-up: it has names and matchers only
	taken int64
}

const (
	// smallRequestsMax bounds the bytes of all reads and look-ups; most have a few hundred.
	smallRequestsMax = 8 * smallMax

	// alwaysMax is about what gRPC itself needs for a call.
	alwaysMax = 4 << 10
)

// take counts n more bytes before they are kept. The error is Throttled; the bytes that it refuses are not counted.
func (r *receiving) take(n int) error {
	r.add(int64(n))
	var err error
	switch most := r.s.settings.RequestBytesMax; {
	case r.taken <= alwaysMax:
		return nil
	case r.s.requestBytes.Load() > most:
		err = fault.Errorf(fault.Throttled, "requests of %d bytes are being received, the most there may be; try again later", most)
	case r.small && r.s.smallBytes.Load() > smallRequestsMax:
		err = fault.Errorf(fault.Throttled, "reads and look-ups of %d bytes are being received, the most there may be; try again later", smallRequestsMax)
	default:
		return nil
	}
	r.add(-int64(n))
	return err
}

// add counts n more bytes, or -n fewer.
func (r *receiving) add(n int64) {
	r.taken += n
	r.s.requestBytes.Add(n)
	if r.small {
		r.s.smallBytes.Add(n)
	}
}

// message receives the request of one evaluation, or of several.
func (r *receiving) message(from receiver) (request []byte, err error) {
	_, err = receiveMessage(from, evaluateMax, func(b []byte) error {
		if err := r.take(len(b)); err != nil {
			return err
		}
		request = append(request, b...)
		return nil
	})
	return request, err
}

// end releases all that take counted.
func (r *receiving) end() { r.add(-r.taken) }

// RequestBytes is how many bytes of requests, other than inserts, are held now.
func (s *Server) RequestBytes() int64 { return s.requestBytes.Load() }

// OnRequestGrowth has f called with the coming value of RequestBytes each time before it grows.
func (s *Server) OnRequestGrowth(f func(to int64)) { s.requestBytes.OnGrowth(f) }
