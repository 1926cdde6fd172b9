package api

import (
	"context"
	"io"

	"github.com/spillwaydb/spillway/protocols/lane"
)

// paced gathers an answer that is encoded in turns, and writes a full buffer between two of them.
type paced struct {
	// Constant.
	ctx  context.Context
	w    io.Writer
	turn *lane.Turn

	buf []byte // not written yet; the caller writes the rest when its turn has ended
}

func (p *paced) Write(b []byte) (int, error) {
	p.buf = append(p.buf, b...)
	if len(p.buf) < bufferFull {
		return len(b), nil
	}
	err := p.turn.Write(p.ctx, p.w, p.buf)
	p.buf = p.buf[:0]
	return len(b), err
}
