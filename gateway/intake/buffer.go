package intake

import (
	"io"
	"math/bits"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// buffer is a piece of pooled memory that was charged to a request. Its owner calls free once.
type buffer struct {
	b      []byte
	charge *charge
}

// Buffers come in sizes of 1 KiB × 4^n. A body starts in the smallest, whatever length it declares: memory grows only with
// the bytes that were sent. Copying to the next size moves a third of the body in all. Larger ones than all sizes are as large as they need be, and
// are not kept: four times a body is more than the budget has.
const (
	bufferMin     = 1 << 10
	bufferClasses = 8 // 1 KiB … 16 MiB
)

// buffers holds free memory, a pool for each size. The zero value is ready.
type buffers struct{ pools [bufferClasses]sync.Pool }

// class is the smallest size that holds n bytes.
func class(n int64) int {
	if n <= bufferMin {
		return 0
	}
	return (bits.Len64(uint64(n-1)/bufferMin) + 1) / 2
}

func classBytes(c int) int64 { return bufferMin << (2 * c) }

// get gives an empty buffer with room for at least n bytes, and charges for its capacity.
func (p *buffers) get(n int64, c *charge) (buffer, error) {
	k := class(n)
	size := classBytes(k)
	if k >= bufferClasses {
		size = n
	}
	if err := c.take(size); err != nil {
		return buffer{}, err
	}
	if k < bufferClasses {
		if m, _ := p.pools[k].Get().(*[]byte); m != nil {
			return buffer{b: (*m)[:0], charge: c}, nil
		}
	}
	return buffer{b: make([]byte, 0, size), charge: c}, nil
}

// free releases the memory; b.b must not be used any more.
func (p *buffers) free(b *buffer) {
	if b.charge == nil {
		return
	}
	size := int64(cap(b.b))
	b.charge.give(size)
	if k := class(size); k < bufferClasses && classBytes(k) == size {
		m := b.b[:0]
		p.pools[k].Put(&m)
	}
	*b = buffer{}
}

// grow moves b to the next larger size, which need not hold more than max bytes and the one that is too many.
func (p *buffers) grow(b *buffer, max int64) error {
	have := int64(cap(b.b))
	n := have * 4
	if have <= max {
		n = min(n, max+1)
	}
	next, err := p.get(n, b.charge)
	if err != nil {
		return err
	}
	next.b = append(next.b, b.b...)
	p.free(b)
	*b = next
	return nil
}

// readAll reads src to its end into a buffer, at most max bytes. mayGrow, if not nil, is asked before the buffer grows.
// Errors: TooLarge, Throttled, and src's own.
func (p *buffers) readAll(src io.Reader, max int64, c *charge, mayGrow func(have int64) error) (buffer, error) {
	b, err := p.get(bufferMin, c)
	if err != nil {
		return b, err
	}
	for {
		if len(b.b) == cap(b.b) {
			if mayGrow != nil {
				err = mayGrow(int64(len(b.b)))
			}
			if err == nil {
				err = p.grow(&b, max)
			}
		}
		if err == nil {
			var n int
			n, err = src.Read(b.b[len(b.b):cap(b.b)])
			b.b = b.b[:len(b.b)+n]
			if int64(len(b.b)) > max {
				err = tooLarge(max)
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return b, nil
		default:
			p.free(&b)
			return buffer{}, err
		}
	}
}

func tooLarge(max int64) error {
	return fault.Errorf(fault.TooLarge, "the body is larger than %d bytes; send it in smaller pieces", max)
}
