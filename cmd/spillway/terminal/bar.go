package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// SizeText formats a size in KiB or MiB.
func SizeText(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// Bar shows progress: a line that is overwritten on a terminal, else a line now and then.
type Bar struct {
	w        io.Writer
	What     string // stands before each line
	terminal bool
	began    time.Time
	shown    time.Time
}

// NewBar returns a bar that shows the progress of what on f.
func NewBar(f *os.File, what string) *Bar {
	st, err := f.Stat()
	return &Bar{w: f, What: what, terminal: err == nil && st.Mode()&os.ModeCharDevice != 0, began: time.Now()}
}

const (
	barEvery  = 200 * time.Millisecond
	lineEvery = 10 * time.Second
	barWidth  = 30
)

// Draw shows a part of the whole, below 0: not known, and a text made of the seconds since the begin; last is shown in any
// case.
func (b *Bar) Draw(part float64, last bool, describe func(seconds float64) string) {
	now := time.Now()
	every := lineEvery
	if b.terminal {
		every = barEvery
	} else if b.shown.IsZero() {
		b.shown = b.began
	}
	if now.Sub(b.shown) < every && !last {
		return
	}
	b.shown = now
	part = min(part, 1)
	took := now.Sub(b.began).Seconds()
	text := describe(max(took, 0.001))
	if part >= 0 {
		text = fmt.Sprintf("%3.0f %%  %s", 100*part, text)
	}
	if left := took / max(part, 0.0001) * (1 - part); part > 0 && part < 1 && took > 1 {
		text += fmt.Sprintf("  %s left", (time.Duration(left) * time.Second).Round(time.Second))
	}
	if b.terminal {
		full := int(max(part, 0) * barWidth)
		fmt.Fprintf(b.w, "\r\x1b[K%s [%s%s] %s", b.What, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), text)
	} else {
		fmt.Fprintf(b.w, "%s: %s\n", b.What, text)
	}
}

// Say prints a whole line.
func (b *Bar) Say(text string) {
	if b.terminal {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
	fmt.Fprintf(b.w, "%s: %s\n", b.What, text)
}

// End ends the line that was overwritten.
func (b *Bar) End() {
	if b.terminal && !b.shown.IsZero() {
		fmt.Fprintln(b.w)
	}
}
