package brick

import "github.com/spillwaydb/spillway/protocols/point"

// EpochMax is the highest epoch ever seen for any placement; 0: none.
func (b *Brick) EpochMax() (most point.Epoch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.mu.index.logs {
		most = max(most, l.epoch)
	}
	return most
}
