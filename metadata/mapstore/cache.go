package mapstore

import (
	"container/list"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// cache keeps maps within a bound, the least used go first. Files, which have no map in them, and maps are shared: they are
// not changed. A map that was sent whole is kept encoded too.
//
//	by     (table, txn) ─▶ element ─▶ cached{file without its map, map, whole: the file as it was sent}
//	order  the newest use first; the last goes when bytes > bytesMax
//
// A transaction's file never changes, so an entry is never stale, only unwanted; a name that is in twice is the same
// file. Maps and files in it are read without the lock by all that got them.
type cache struct {
	bytesMax int

	mu struct {
		sync.Mutex
		by    map[cacheKey]*list.Element
		order *list.List // of *cached, the newest first
		bytes int
	}
}

type cacheKey struct {
	table string
	txn   peer.TxnID
}

type cached struct {
	cacheKey
	file  *peer.File
	m     *topology.Map
	bytes int
	whole *peer.File // nil: it was not sent whole
}

func newCache(bytesMax int) *cache {
	c := &cache{bytesMax: bytesMax}
	c.mu.by, c.mu.order = map[cacheKey]*list.Element{}, list.New()
	return c
}

func (c *cache) get(table string, txn peer.TxnID) (*peer.File, *topology.Map, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.mu.by[cacheKey{table, txn}]
	if e == nil {
		return nil, nil, false
	}
	c.mu.order.MoveToFront(e)
	v := e.Value.(*cached)
	return v.file, v.m, true
}

func (c *cache) put(f *peer.File, m *topology.Map) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := cacheKey{f.Table, f.Txn}
	if c.mu.by[k] != nil {
		return
	}
	// The size of the encoding stands for the memory of the map.
	v := &cached{cacheKey: k, file: headOf(f, m), m: m, bytes: m.EncodedBytes()}
	c.mu.by[k] = c.mu.order.PushFront(v)
	c.mu.bytes += v.bytes
	c.shrinkLocked()
}

// putWhole keeps the whole form of a file that is here.
func (c *cache) putWhole(f *peer.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.mu.by[cacheKey{f.Table, f.Txn}]
	if e == nil || e.Value.(*cached).whole != nil {
		return
	}
	v := e.Value.(*cached)
	v.whole = f
	v.bytes += len(f.Map)
	c.mu.bytes += len(f.Map)
	c.shrinkLocked()
}

// getWhole gives the whole form of a file; nil: it is not here.
func (c *cache) getWhole(table string, txn peer.TxnID) *peer.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.mu.by[cacheKey{table, txn}]; e != nil {
		return e.Value.(*cached).whole
	}
	return nil
}

func (c *cache) shrinkLocked() {
	// The newest stays even if it alone is over the bound: its caller is about to use it.
	for c.mu.bytes > c.bytesMax && c.mu.order.Len() > 1 {
		c.removeLocked(c.mu.order.Back())
	}
}

func (c *cache) remove(table string, txn peer.TxnID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.mu.by[cacheKey{table, txn}]; e != nil {
		c.removeLocked(e)
	}
}

func (c *cache) removeLocked(e *list.Element) {
	v := c.mu.order.Remove(e).(*cached)
	delete(c.mu.by, v.cacheKey)
	c.mu.bytes -= v.bytes
}
