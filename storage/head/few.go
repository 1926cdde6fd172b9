package head

import (
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/point"
)

// few is the state of a partition's first series while no others have rows: 32, then 128, then 512. A page is for 1024, and a partition
// with a single row would need 66 kB; thousands of such partitions must cost no more than their rows. It lies on the collector's
// heap and is copied as it grows; the first page replaces it.
type few struct {
	series []series
	groups []group
	over   bool
}

// fewRooms are the sizes, in series; none is below the series of a group.
var fewRooms = [...]int{32, 128, 512}

func (f *few) bytes() int {
	return len(f.series)*int(unsafe.Sizeof(series{})) + len(f.groups)*int(unsafe.Sizeof(group{}))
}

// fitLocked makes room for those of ids that lie in the first page, among few or in the page itself. Targets that
// targetLocked returned before are no longer valid.
func (h *Head) fitLocked(ids []point.DenseID) {
	most, any := point.DenseID(0), false
	for _, id := range ids {
		if id < pageSeries {
			most, any = max(most, id), true
		}
	}
	if !any || int(most) < len(h.few.series) {
		return
	}
	for _, room := range fewRooms {
		if int(most) < room {
			h.few.grow(room)
			h.growIDsLocked(room)
			return
		}
	}
	h.newPageLocked(0)
	copy(h.pages[0].series[:], h.few.series)
	copy(h.pages[0].groups[:], h.few.groups)
	h.few = few{over: true}
}

func (f *few) grow(room int) {
	s, g := make([]series, room), make([]group, room>>groupShift)
	copy(s, f.series)
	copy(g, f.groups)
	f.series, f.groups = s, g
}
