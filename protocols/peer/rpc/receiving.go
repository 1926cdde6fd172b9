package rpc

import "github.com/spillwaydb/spillway/protocols/fault"

// receiving counts the bytes of requests from when they come until they are answered: Settings.RequestBytesMax bounds
// them all, and smallRequestsMax those of reads and look-ups, so that maps, which keep a cluster running, always find room.
type receiving struct {
	s     *Server
	small bool // it has names and matchers only
	taken int64
}

// smallRequestsMax bounds the bytes of all requests that hold names and matchers only; most have a few hundred.
const smallRequestsMax = 8 * smallMax

// take counts n more bytes before they are kept. The error is Throttled.
func (r *receiving) take(n int) error {
	r.taken += int64(n)
	all, most := &r.s.requestBytes, r.s.settings.RequestBytesMax
	all.Add(int64(n))
	if r.small {
		r.s.smallBytes.Add(int64(n))
	}
	switch {
	case all.Load() > most:
		return fault.Errorf(fault.Throttled, "requests of %d bytes are being received, the most there may be; try again later", most)
	case r.small && r.s.smallBytes.Load() > smallRequestsMax:
		return fault.Errorf(fault.Throttled, "reads and look-ups of %d bytes are being received, the most there may be; try again later", smallRequestsMax)
	}
	return nil
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
func (r *receiving) end() {
	r.s.requestBytes.Add(-r.taken)
	if r.small {
		r.s.smallBytes.Add(-r.taken)
	}
	r.taken = 0
}

// RequestBytes is how many bytes of requests, other than inserts, are held now.
func (s *Server) RequestBytes() int64 { return s.requestBytes.Load() }

// OnRequestGrowth has f called with the coming value of RequestBytes each time before it grows.
func (s *Server) OnRequestGrowth(f func(to int64)) { s.requestBytes.OnGrowth(f) }
