package segment

import (
	"container/list"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/klauspost/compress/zstd"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Cache bounds the memory of all readers that share it: blocks as they lie in the files, and decoded parts: columns of times, definitions,
// series of blocks of which few were asked for, blocks of short chunks, columns of values, pages of places, and what segments have in common. It
// also holds the decoder that they share. Safe for concurrent use; close it after its readers.
//
//	blocks  pebble's cache, three quarters of the size: blocks as they lie in the file, after their checksum was compared
//	mu      a quarter: decoded parts, of which the one used longest ago leaves first; but while blocks, columns, places and definitions are more than half
//	        of them, one of these. An entry never changes once it is put: a look-up returns it without a copy, and one that leaves stays
//	        good for the reads that still use it
//	labels  labels that entries share; their bytes count as part of mu.bytes
//	files   the open files, bounded by their number, with a lock of its own
//
// Locks, in order: Reader.opening, then mu, then labels.mu. files.mu is acquired under opening, and never together with mu. Nothing is
// read, decompressed or decoded under mu: two reads that miss the same part both decode it, and putLocked drops the second copy. A column
// is made by one read; others read their series.
type Cache struct {
	blocks  *pebble.Cache
	decoder *zstd.Decoder
	scratch sync.Pool // of *readState

	mu struct {
		sync.Mutex
		pages map[pageKey]*list.Element // of *cached
		// Blocks, columns, places and definitions are bulk, the rest is small; front: used last. Definitions of narrow partitions that do not all stay would push
		// out the answers to selectors, which are a hundredth of their size and without which each query needs all definitions again.
		bulk, small *list.List
		refused     uint64               // blocks; see admits
		unplaced    uint64               // pages of places that were refused
		filling     map[pageKey]struct{} // columns that are being read
		noRoom      uint64               // columns that were wanted while there was no room
		wanted      int                  // series of columns of which few were wanted while there was no room, since one was read
		uses        uint64               // of all parts, to compare the ends of the two lists
		bytes       int64
		bulkBytes   int64                // of bytes, those of bulk, and of the labels of definitions
		answers     map[uint64][]*answer // that pages hold, by hash
		met         []point.Nanos        // hashes of stored bytes; see metBefore
	}
	pagesMax int64
	common   *Reader // the reader of what segments have in common; it has no file
	// Random, so that keys with one hash cannot be chosen from outside. Hashes stay in memory.
	seed   maphash.Seed
	labels labelTable // of the pages of definitions

	files files

	opened struct{ blocks, bytes atomic.Int64 } // see Opened
}

// Opened returns how many blocks readers decompressed since the Cache was made, those of compactions included, and their bytes in the files. A block that is kept open, or
// plain, counts once.
func (c *Cache) Opened() (blocks, bytes int64) { return c.opened.blocks.Load(), c.opened.bytes.Load() }

// entryBytes is the entry of a page of places, or of a common part, beside the bytes that it holds.
const entryBytes = 400

// CacheBytes is the default size of a Cache.
const CacheBytes = 64 << 20

// NewCache makes a cache of about size bytes (0: CacheBytes), a quarter of it for decoded parts.
func NewCache(size int64) *Cache {
	if size <= 0 {
		size = CacheBytes
	}
	c := &Cache{blocks: pebble.NewCache(size - size/4), decoder: newDecoder(), pagesMax: size / 4, common: &Reader{}, seed: maphash.MakeSeed()}
	c.labels.seed, c.labels.of = c.seed, map[uint64][]*sharedLabels{}
	c.scratch.New = func() any { return new(readState) }
	c.mu.pages, c.mu.bulk, c.mu.small, c.mu.answers = map[pageKey]*list.Element{}, list.New(), list.New(), map[uint64][]*answer{}
	c.mu.filling, c.mu.met = map[pageKey]struct{}{}, make([]point.Nanos, commonMet)
	c.files.max = FilesMax
	return c
}

// Close frees the cache. Readers that are still open keep the parts that they use.
// Content is dropped without the lock of labels: no reader is left.
func (c *Cache) Close() {
	c.blocks.Unref()
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.mu.pages {
		k.reader.cached = nil
	}
	clear(c.mu.pages)
	clear(c.mu.answers)
	clear(c.labels.of)
	c.mu.bulk.Init()
	c.mu.small.Init()
	c.mu.bytes, c.mu.bulkBytes = 0, 0
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

// Parts of all readers and kinds are in one map. Kinds that have no group use numbers that no group has:
//
//	                 group              page            at
//	page of times    its group          number          0
//	ranks            its group          block           1
//	block            its group          2^32-1          lowest time
//	plain block      its group          2^32-3          lowest time; 0 if it is the only one of its group
//	definitions      definitionsGroup   first id        0
//	names            namesGroup         0               0
//	record of a group its group         2^32-2          0
//	an answer        answersGroup, setsGroup, foundGroup   0   hash of the question
//	a column         columnsGroup       0               hash of the selector
//	places           placesGroup        number          0
//	common names     namesGroup         0               hash of the bytes that are stored; the reader is Cache.common
//	a common frame   framesGroup        0               hash of the bytes that are stored; the reader is Cache.common
//
// A hash may be that of two questions: the entry has the question, too, and is compared with it. So it is with stored bytes.

// pageKey names a page of times of one open reader, or one of definitions: then group is definitionsGroup, and page the
// first id; or a record of ranks: then at is ranksAt; or a block: then at is its lowest time; or the record of a group: then page is recordPage; or the record of names: namesGroup;
// or the answer to a Lookup: answersGroup, and at is the hash of its key; or the series that one matcher selects: setsGroup, and at is its hash; or what a
// Selector finds: foundGroup, or the column of its rows: columnsGroup, and at is the hash of its key.
type pageKey struct {
	reader      *Reader
	group, page uint32
	at          point.Nanos
}

const (
	definitionsGroup = groupsMax // no group has this number
	namesGroup       = groupsMax + 1
	answersGroup     = groupsMax + 2
	setsGroup        = groupsMax + 3
	foundGroup       = groupsMax + 4
	columnsGroup     = groupsMax + 5
	framesGroup      = groupsMax + 6
	placesGroup      = groupsMax + 7
	blockPage        = 1<<32 - 1
	recordPage       = 1<<32 - 2
	plainPage        = 1<<32 - 3
	ranksAt          = 1 // of a page of times it is 0
)

// cached is a decoded page.
type cached struct {
	key    pageKey
	cols   [][]point.Nanos
	defs   *definitions
	block  *openBlock
	plain  *plainBlock
	record *groupRecord
	ranks  *openRanks
	names  []labelName
	raw    []byte // of a frame, or a page of places; nil: the segment has no such page
	// asked is compared after the hash: the key of a Lookup or Selector for its answer, the matcher for its set, the stored bytes for common names and frames.
	asked string

	set      *roaring.Bitmap // of series
	negative bool            // the matcher holds for the others
	ids      []point.DenseID // of the series that a Selector finds, and the places of their rows
	places   []Place
	column   *Column // of the series that a Selector finds
	// Shared with pages of other segments; nil in an entry without a list.
	*answer
	bytes int64  // its own: without those of the answer
	used  uint64 // when it was used last, in uses; guarded by the cache's lock

	before, after *cached // among the parts of its reader; guarded by the cache's lock
}

// answer is to a Lookup, of one segment or more: narrow partitions often have the same values. It is also the labels of the series that a Selector finds.
type answer struct {
	values []string
	hash   uint64
	pages  int // that hold it; guarded by the cache's lock
	bytes  int64
}

// page gives a page if it is cached. It is shared and read only.
func (c *Cache) page(k pageKey) (*cached, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pageLocked(k)
}

// found gives what a selector found, which is at k, if it is cached, and the column of its rows, if that is.
func (c *Cache) found(k pageKey, asked string) (found *cached, column *Column) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.pageLocked(k)
	if !ok || found.asked != asked {
		return nil, nil
	}
	k.group = columnsGroup
	if p, ok := c.pageLocked(k); ok && p.asked == asked {
		column = p.column
	}
	return found, column
}

func (c *Cache) pageLocked(k pageKey) (*cached, bool) {
	e, ok := c.mu.pages[k]
	if !ok {
		return nil, false
	}
	c.listLocked(k).MoveToFront(e)
	p := e.Value.(*cached)
	c.useLocked(p)
	return p, true
}

// listLocked is the list that a part is in.
func (c *Cache) listLocked(k pageKey) *list.List {
	if k.isBulk() {
		return c.mu.bulk
	}
	return c.mu.small
}

// isBulk reports whether the key is of a block, a column, places or definitions.
func (k *pageKey) isBulk() bool {
	return k.page == blockPage || k.page == plainPage || k.group == definitionsGroup || k.group == columnsGroup || k.group == placesGroup
}

// plainKey is the key under which a block is plain.
func plainKey(k pageKey) pageKey {
	k.page = plainPage
	return k
}

// onlyKey is the key under which the only block of a group is plain, together with the record of the group: no lowest time is needed to find it.
func onlyKey(r *Reader, group uint32) pageKey {
	return pageKey{reader: r, group: group, page: plainPage}
}

func (c *Cache) useLocked(p *cached) {
	c.mu.uses++
	p.used = c.mu.uses
}

// times gives a page's columns if they are cached.
func (c *Cache) times(k pageKey) ([][]point.Nanos, bool) {
	if p, ok := c.page(k); ok {
		return p.cols, true
	}
	return nil, false
}

// putTimes keeps a page of times: 24 bytes are the head of a slice.
func (c *Cache) putTimes(k pageKey, cols [][]point.Nanos) {
	size := int64(64)
	for _, col := range cols {
		size += 24 + 8*int64(len(col))
	}
	c.put(&cached{key: k, cols: cols, bytes: size})
}

// putDefinitions keeps a page, and returns it with labels that it shares with pages of other segments.
func (c *Cache) putDefinitions(k pageKey, defs *definitions) *definitions {
	shared, grown := c.labels.share(defs)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.growLocked(grown)
	p := &cached{key: k, defs: shared, bytes: shared.bytes()}
	if !c.putLocked(p) {
		c.growLocked(-c.labels.release(shared))
	}
	return shared
}

func (c *Cache) putRanks(k pageKey, o *openRanks) {
	c.put(&cached{key: k, ranks: o, bytes: 64 + o.bytes()})
}

// putBlock keeps a block in the place of one that lacks some of its series. Of two reads that open it at the same time, the one with more series stays.
func (c *Cache) putBlock(k pageKey, b *openBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.mu.pages[k]; ok {
		if old := e.Value.(*cached).block; old.of.hasAll(&b.of) {
			return
		}
		c.dropLocked(e)
	}
	c.putLocked(&cached{key: k, block: b, bytes: 320 + b.bytes()})
}

// admits reports whether to keep a block that is larger than its encoded form, and of which a query may need more than there is room for: always while
// there is room, else one of eight. If each were kept, a query over more than fits would find none of those that it left the last time.
func (c *Cache) admits(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admitsLocked(bytes, &c.mu.refused)
}

// admitsPlaces is admits for a page of places.
func (c *Cache) admitsPlaces(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.admitsLocked(bytes, &c.mu.unplaced)
}

func (c *Cache) admitsLocked(bytes int64, refused *uint64) bool {
	if c.mu.bytes+bytes <= c.pagesMax {
		return true
	}
	*refused++
	return *refused%8 == 0
}

// columnSpare is the part of the room that reads of few series leave free, and the part of their work that columns may cost when there is none: a column reads all series,
// and the column that it evicts may be the one that the next read wants.
const columnSpare = 8

// beginColumn reports whether a column of all series is to be read, of which so many are wanted: of most of them by admits; of few while there is room, and else once
// as many were wanted as columnSpare columns have. Until endColumn no other goroutine reads it.
func (c *Cache) beginColumn(k pageKey, bytes int64, wanted, all int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.mu.filling[k]; ok {
		return false
	}
	if _, ok := c.mu.pages[k]; ok { // it was put just now
		return false
	}
	switch {
	case 2*wanted >= all:
		if !c.admitsLocked(bytes, &c.mu.noRoom) {
			return false
		}
	case c.mu.bytes+bytes > c.pagesMax-c.pagesMax/columnSpare:
		if c.mu.wanted += wanted; c.mu.wanted < columnSpare*all {
			return false
		}
		c.mu.wanted = 0
	}
	c.mu.filling[k] = struct{}{}
	return true
}

func (c *Cache) endColumn(k pageKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.filling, k)
}

// putPlain keeps a block in the place of the one at open, which lacks some of its series. record is that of its group if it has no other block, else nil.
func (c *Cache) putPlain(k, open pageKey, b *plainBlock, record *groupRecord, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.mu.pages[open]; ok {
		c.dropLocked(e)
	}
	if record != nil {
		bytes += record.bytes()
	}
	c.putLocked(&cached{key: k, plain: b, record: record, bytes: 320 + bytes})
}

func (c *Cache) putRecord(k pageKey, g *groupRecord) {
	c.put(&cached{key: k, record: g, bytes: 128 + g.bytes()})
}

func (c *Cache) putNames(k pageKey, names []labelName) {
	c.put(&cached{key: k, names: names, bytes: 64 + namesBytes(names)})
}

// namesBytes is the size of a list of names.
func namesBytes(names []labelName) (size int64) {
	for i := range names {
		size += 56 + int64(len(names[i].name))
		for _, first := range names[i].firsts {
			size += 16 + int64(len(first))
		}
	}
	return size
}

// putSet keeps the series that one matcher selects; set is read only from here on.
func (c *Cache) putSet(k pageKey, asked string, set *roaring.Bitmap, negative bool) {
	c.put(&cached{key: k, asked: asked, set: set, negative: negative, bytes: 256 + int64(len(asked)) + int64(set.GetSizeInBytes())})
}

// hash gives a place for the key of a Lookup; keys with one hash alternate there.
func (c *Cache) hash(key string) point.Nanos { return point.Nanos(maphash.String(c.seed, key)) }

// putAnswer keeps an answer, and returns it or an equal one that another segment gave.
func (c *Cache) putAnswer(k pageKey, asked string, values []string) []string {
	return c.putList(&cached{key: k, asked: asked, bytes: 160 + int64(len(asked))}, values)
}

// putFound keeps what a Selector found, and returns its labels, or equal ones of another segment.
func (c *Cache) putFound(k pageKey, asked string, f *Found) []string {
	return c.putList(&cached{key: k, asked: asked, ids: f.IDs, places: f.Places, bytes: 200 + int64(len(asked)) + foundBytes*int64(len(f.IDs))}, f.labels)
}

func (c *Cache) putColumn(k pageKey, asked string, column *Column) {
	c.put(&cached{key: k, asked: asked, column: column, bytes: columnBytes + int64(len(asked)) + 8*int64(len(column.times)+len(column.values))})
}

// listedBytes is the size of a value of a list.
func listedBytes(v string) int64 { return 16 + int64(len(v)) }

// putList keeps a page with a list, and returns the list or an equal one of another page.
func (c *Cache) putList(p *cached, values []string) []string {
	var h maphash.Hash
	h.SetSeed(c.seed)
	of := &answer{values: values, bytes: 96}
	for _, v := range values {
		of.bytes += listedBytes(v)
		_, _ = h.WriteString(v)
		_ = h.WriteByte(0xff) // not in valid UTF-8
	}
	of.hash = h.Sum64()
	if of.bytes > c.pagesMax || p.bytes > c.pagesMax { // putLocked would refuse the page, and the list would stay without one
		return values
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Equal hashes are compared value by value: a collision costs a list of its own.
	for _, other := range c.mu.answers[of.hash] {
		if slices.Equal(other.values, values) {
			of = other
		}
	}
	// Another read was faster with the same question; its page holds the list, and this one's is not counted.
	if _, ok := c.mu.pages[p.key]; ok {
		return of.values
	}
	if of.pages++; of.pages == 1 {
		c.mu.answers[of.hash] = append(c.mu.answers[of.hash], of)
		c.mu.bytes += of.bytes
	}
	p.answer = of
	c.putLocked(p)
	return of.values
}

// leaveLocked ends that a page holds a list.
func (c *Cache) leaveLocked(of *answer) {
	if of.pages--; of.pages > 0 {
		return
	}
	c.mu.bytes -= of.bytes
	rest := slices.DeleteFunc(c.mu.answers[of.hash], func(l *answer) bool { return l == of })
	if len(rest) == 0 {
		delete(c.mu.answers, of.hash)
		return
	}
	c.mu.answers[of.hash] = rest
}

func (c *Cache) put(p *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(p)
}

// putLocked keeps a page, and reports whether it did: not if the key is there already, or the page is too large.
func (c *Cache) putLocked(p *cached) bool {
	if _, ok := c.mu.pages[p.key]; ok || p.bytes > c.pagesMax {
		return false
	}
	c.useLocked(p)
	c.mu.pages[p.key] = c.listLocked(p.key).PushFront(p)
	p.key.reader.linkLocked(p)
	if c.mu.bytes += p.bytes; p.key.isBulk() {
		c.mu.bulkBytes += p.bytes
	}
	// This may drop the page that was just added, when the labels of its series alone exceed the bound. The caller has it in hand.
	for c.mu.bytes > c.pagesMax && len(c.mu.pages) > 0 {
		c.dropLocked(c.oldestLocked())
	}
	return true
}

// oldestLocked is the part that leaves next; there is one.
func (c *Cache) oldestLocked() *list.Element {
	bulk, small := c.mu.bulk.Back(), c.mu.small.Back()
	switch {
	case small == nil, bulk != nil && c.mu.bulkBytes > c.pagesMax/2:
		return bulk
	case bulk == nil, small.Value.(*cached).used < bulk.Value.(*cached).used:
		return small
	}
	return bulk
}

// dropLocked removes an entry, and those of its shared lists and labels that no other holds.
func (c *Cache) dropLocked(e *list.Element) {
	entry := e.Value.(*cached)
	c.listLocked(entry.key).Remove(e)
	delete(c.mu.pages, entry.key)
	entry.key.reader.unlinkLocked(entry)
	if c.mu.bytes -= entry.bytes; entry.key.isBulk() {
		c.mu.bulkBytes -= entry.bytes
	}
	if entry.answer != nil {
		c.leaveLocked(entry.answer)
	}
	if entry.defs != nil {
		c.growLocked(-c.labels.release(entry.defs))
	}
}

// growLocked counts bytes of labels.
func (c *Cache) growLocked(bytes int64) {
	c.mu.bytes += bytes
	c.mu.bulkBytes += bytes
}

// forget drops the parts of a reader that is closed, or has a file with other bytes. Others are not looked at: with narrow partitions a reader is opened and closed
// many times a second, and a walk over a million parts held up all reads.
func (c *Cache) forget(r *Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r.cached != nil {
		c.dropLocked(c.mu.pages[r.cached.key])
	}
}

// linkLocked puts a part in front of those of its reader. The cache's lock is held.
func (r *Reader) linkLocked(p *cached) {
	if p.after = r.cached; p.after != nil {
		p.after.before = p
	}
	r.cached = p
}

// unlinkLocked removes a part from those of its reader. The cache's lock is held.
func (r *Reader) unlinkLocked(p *cached) {
	if p.after != nil {
		p.after.before = p.before
	}
	if p.before != nil {
		p.before.after = p.after
	} else {
		r.cached = p.after
	}
	p.before, p.after = nil, nil
}
