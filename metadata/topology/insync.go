package topology

import "github.com/spillwaydb/spillway/protocols/point"

// InSyncWas is what a table demanded of in-sync lists before its settings were changed. The zero value: nothing else than now.
type InSyncWas struct {
	// Before is the first partition that no leader knew before the minimum was last raised. The lists of partitions before it may be as short as Least, until they
	// have grown.
	Before point.PartitionID
	Least  int
	// Most is the highest minimum that the table had, if it is above the present one. A reader may still use it for a moment, so that leaders go below it only later
	// (storage/lead/rules).
	Most int
	// Fewest is the lowest minimum that the table had, if it is below the present one: rows that wait in staging may be held by so few.
	Fewest int
}

// MinInSync is how many placements must keep a row that is acknowledged as kept by all: InSyncMin, or if that is 0 then 1 of 1, 2 of 2 and
// of 3, more than half of more.
func (c Config) MinInSync() int {
	if c.InSyncMin > 0 {
		return c.InSyncMin
	}
	n := max(c.Replicas, 1)
	return min(n, n/2+1)
}

// ShortestList bounds from below the in-sync list of a partition with rows, of n placements: of any n - ShortestList + 1 one is listed. At least 1.
//
// A partition of a table whose replicas were raised has its old placements for a while, and its list may be as short as the smaller number allowed.
func (c Config) ShortestList(id point.PartitionID, n int) int {
	least := c.leastOf(n)
	if id < c.InSyncWas.Before {
		least = min(least, c.InSyncWas.Least)
	}
	return least
}

// StagedHolders is how many servers hold each staged frame of the table at least.
func (c Config) StagedHolders() int {
	n := c.MinInSync()
	if w := c.InSyncWas; w.Fewest > 0 {
		n = min(n, w.Fewest)
	}
	return n
}

// leastOf is the minimum of a partition of n placements that was always under this setting.
func (c Config) leastOf(n int) int {
	c.Replicas = max(1, min(n, c.Replicas))
	return min(c.MinInSync(), c.Replicas)
}

// inSyncWas returns what a map's lists may be like once its configuration is next. Partitions that grow later need no note: a placement is
// made live only when it is listed, by a leader that knows next.
func (m *Map) inSyncWas(next Config) (was InSyncWas) {
	if m.NextID == 1 { // there never was a row
		return was
	}
	if most := max(m.Config.MinInSync(), m.Config.InSyncWas.Most); most > next.MinInSync() {
		was.Most = most
	}
	if few := m.Config.StagedHolders(); few < next.MinInSync() {
		was.Fewest = few
	}
	next.InSyncWas = InSyncWas{}
	for p := range m.All() {
		n := len(p.Placements)
		if had := m.Config.ShortestList(p.ID, n); had < next.ShortestList(p.ID, n) && (was.Before == 0 || had < was.Least) {
			was.Before, was.Least = m.NextID, had
		}
	}
	return was
}
