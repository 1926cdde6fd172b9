package files

import (
	"container/list"
	"sync"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// cache keeps decoded files within a bound, the least used go first. Files and maps are shared: nobody changes them.
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
	file *peer.File
	m    *topology.Map
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
	c.mu.by[k] = c.mu.order.PushFront(&cached{k, f, m})
	c.mu.bytes += len(f.Map)
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
	c.mu.bytes -= len(v.file.Map)
}
