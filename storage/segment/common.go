package segment

import (
	"hash/maphash"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Segments of narrow partitions have the same label names, and the same values of most labels, so their records of names and frames of values have the same bytes. The
// Cache has what small ones hold by these bytes: a query that visits a thousand such segments for the first time opens a few frames, and not three of each.
//
//	segment 1: record of names ─┐                  segment 1: frame of values ─┐
//	segment 2: record of names ─┼─▶ names          segment 2: frame of values ─┼─▶ values
//	segment 3: record of names ─┘                  segment 3: frame of values ─┘
//
// The bytes themselves are compared, so equal hashes do no harm. What is met for the first time does not stay, only the hash of its bytes: where each segment has hosts
// of its own, frames that no other has would push out the answers to selectors, which are a tenth of their size.

// Bounds of common frames: the bytes as they are stored, and when decoded. Longer ones are of segments of many series, of which there are few.
const (
	commonStoredMax = 4 << 10
	commonHeldMax   = 16 << 10
)

// commonMet is how many hashes of bytes that were met are remembered, by their remainders: those of the last few hundred segments.
const commonMet = 1 << 10

// commonKey is the key of what stored bytes hold. The reader stands for all.
func (c *Cache) commonKey(group uint32, stored []byte) pageKey {
	return pageKey{reader: c.common, group: group, at: point.Nanos(maphash.Bytes(c.seed, stored))}
}

// commonOf returns what stored bytes hold, if the Cache has it. It is shared and read only.
func (c *Cache) commonOf(group uint32, stored []byte) *cached {
	if len(stored) > commonStoredMax {
		return nil
	}
	if p, ok := c.page(c.commonKey(group, stored)); ok && p.asked == string(stored) {
		return p
	}
	return nil
}

// putCommon keeps what stored bytes hold, which is so many bytes long, if they were met before.
func (c *Cache) putCommon(group uint32, stored []byte, p *cached, held int64) {
	if len(stored) > commonStoredMax || held > commonHeldMax {
		return
	}
	p.key = c.commonKey(group, stored)
	if !c.metBefore(p.key.at) {
		return
	}
	p.asked, p.bytes = string(stored), entryBytes+int64(len(stored))+held
	c.put(p)
}

// metBefore reports whether a hash was met lately, and remembers it. Another one with its remainder replaces it.
func (c *Cache) metBefore(hash point.Nanos) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.mu.met[uint64(hash)%commonMet]
	met := *at == hash
	*at = hash
	return met
}

// commonFrame is frame for one that other segments may have too. The result is shared and read only.
func (c *cursor) commonFrame(of *Cache, rawLen int) []byte {
	rest := *c
	form := rest.byte()
	stored := rest.bytes(rest.count(len(rest.b)))
	if rest.bad || form != frameZstd {
		raw, _ := c.frame(of.decoder, rawLen, nil)
		return raw
	}
	if p := of.commonOf(framesGroup, stored); p != nil && len(p.raw) == rawLen {
		*c = rest
		return p.raw
	}
	raw, _ := c.frame(of.decoder, rawLen, nil)
	if !c.bad {
		of.putCommon(framesGroup, stored, &cached{raw: raw}, int64(cap(raw)))
	}
	return raw
}
