package series

import "github.com/spillwaydb/spillway/protocols/memory"

// slots find refs by the hash of their labels: open addressing, one step at a time. A slot is 8 bytes and holds no pointer,
// so that the collector has nothing to look at: 32 bits of the hash, then ref+1; 0: free. A shard's lock guards them.
type slots struct {
	list []uint64 // a power of two slots, at most three quarters in use; the low bits of the hash are a slot's home
	used int
}

const slotsMin = 16

func slotOf(hash uint64, ref Ref) uint64 { return hash<<32 | uint64(ref+1) }

func (s *slots) mask() uint64 { return uint64(len(s.list) - 1) }

// put adds a ref under its hash, beside others that have the same.
func (s *slots) put(hash uint64, ref Ref) {
	if (s.used+1)*4 > len(s.list)*3 {
		s.grow()
	}
	s.insert(slotOf(hash, ref))
	s.used++
}

func (s *slots) insert(slot uint64) {
	i := slot >> 32 & s.mask()
	for s.list[i] != 0 {
		i = (i + 1) & s.mask()
	}
	s.list[i] = slot
}

func (s *slots) grow() {
	old := s.list
	s.list = memory.Touch(make([]uint64, max(slotsMin, 2*len(old))))
	for _, slot := range old {
		if slot != 0 {
			s.insert(slot)
		}
	}
}

// remove deletes a ref that is there under its hash. Later slots move up, so that no search ends early.
func (s *slots) remove(hash uint64, ref Ref) {
	free := hash & s.mask()
	for s.list[free] != slotOf(hash, ref) {
		free = (free + 1) & s.mask()
	}
	s.used--
	for i := free; ; {
		s.list[free] = 0
		for {
			i = (i + 1) & s.mask()
			if s.list[i] == 0 {
				return
			}
			// A slot may move to the free place unless its home lies behind that.
			if home := s.list[i] >> 32 & s.mask(); (i-home)&s.mask() >= (i-free)&s.mask() {
				break
			}
		}
		s.list[free], free = s.list[i], i
	}
}
