package segment

import (
	"container/list"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Cache bounds the memory of all readers that share it: blocks as they lie in the files, and decoded parts: columns of times, definitions,
// blocks of which few series were asked for. It also holds the decoder that they share. Safe for concurrent use; close it after its
// readers.
type Cache struct {
	blocks  *pebble.Cache
	decoder *zstd.Decoder
	scratch sync.Pool // of *readState

	mu struct {
		sync.Mutex
		pages map[pageKey]*list.Element // of *cached
		order *list.List                // front: used last
		bytes int64
	}
	pagesMax int64

	files files
}

// CacheBytes is the default size of a Cache.
const CacheBytes = 64 << 20

// NewCache makes a cache of about size bytes (0: CacheBytes), a quarter of it for decoded parts.
func NewCache(size int64) *Cache {
	if size <= 0 {
		size = CacheBytes
	}
	c := &Cache{blocks: pebble.NewCache(size - size/4), decoder: newDecoder(), pagesMax: size / 4}
	c.scratch.New = func() any { return new(readState) }
	c.mu.pages, c.mu.order = map[pageKey]*list.Element{}, list.New()
	c.files.max = FilesMax
	return c
}

// Close frees the cache. Readers that are still open keep the parts that they use.
func (c *Cache) Close() {
	c.blocks.Unref()
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.mu.pages)
	c.mu.order.Init()
	c.mu.bytes = 0
}

// Bytes is the size of the cache's content.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bytes + c.blocks.Size()
}

// options gives a reader a part of the block cache of its own, a function that empties that part, and one that frees it.
func (c *Cache) options() (o sstable.ReaderOptions, evict, free func()) {
	h := c.blocks.NewHandle()
	o.CacheOpts.CacheHandle = h // one file a handle: the file number can stay 0
	evict = func() { h.EvictFile(0) }
	return o, evict, func() {
		evict()
		h.Close()
	}
}

// pageKey names a page of times of one open reader, or one of definitions: then group is definitionsGroup, and page the
// first id; or a block: then at is its lowest time.
type pageKey struct {
	reader      *Reader
	group, page uint32
	at          point.Nanos
}

const (
	definitionsGroup = groupsMax // no group has this number
	blockPage        = 1<<32 - 1
)

// cached is a decoded page.
type cached struct {
	key   pageKey
	cols  [][]point.Nanos
	defs  []definition
	block *openBlock
	bytes int64
}

// page gives a page if it is cached. It is shared and read only.
func (c *Cache) page(k pageKey) (*cached, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.mu.pages[k]
	if !ok {
		return nil, false
	}
	c.mu.order.MoveToFront(e)
	return e.Value.(*cached), true
}

// times gives a page's columns if they are cached.
func (c *Cache) times(k pageKey) ([][]point.Nanos, bool) {
	if p, ok := c.page(k); ok {
		return p.cols, true
	}
	return nil, false
}

func (c *Cache) putTimes(k pageKey, cols [][]point.Nanos) {
	size := int64(64)
	for _, col := range cols {
		size += 24 + 8*int64(len(col))
	}
	c.put(&cached{key: k, cols: cols, bytes: size})
}

func (c *Cache) putDefinitions(k pageKey, defs []definition) {
	size := int64(64)
	for i := range defs {
		size += 24 + int64(len(defs[i].labels))
	}
	c.put(&cached{key: k, defs: defs, bytes: size})
}

func (c *Cache) putBlock(k pageKey, b *openBlock) {
	c.put(&cached{key: k, block: b, bytes: b.bytes()})
}

func (c *Cache) put(p *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.mu.pages[p.key]; ok || p.bytes > c.pagesMax {
		return
	}
	c.mu.pages[p.key] = c.mu.order.PushFront(p)
	c.mu.bytes += p.bytes
	for c.mu.bytes > c.pagesMax {
		c.dropLocked(c.mu.order.Back())
	}
}

func (c *Cache) dropLocked(e *list.Element) {
	entry := c.mu.order.Remove(e).(*cached)
	delete(c.mu.pages, entry.key)
	c.mu.bytes -= entry.bytes
}

// forget drops the columns of a reader that is closed.
func (c *Cache) forget(r *Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range c.mu.pages {
		if k.reader == r {
			c.dropLocked(e)
		}
	}
}
