package process

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type waitsFor time.Duration

func (w *waitsFor) OldestWait(time.Time) time.Duration { return time.Duration(*w) }

// TestWritersAreNotSentToADiskThatHangs: a process with an fsync that does not return is not ready, says why, and is ready again afterwards.
func TestWritersAreNotSentToADiskThatHangs(t *testing.T) {
	var disk waitsFor
	d := &door{behind: gatewayDeps{stalled: func() error { return stalled(&disk) }}}
	d.ready.Store(true)
	for _, step := range []struct {
		wait waitsFor
		want int
		text string
	}{
		{0, http.StatusOK, "ready"},
		{waitsFor(fsyncWaitMax), http.StatusOK, "ready"},
		{waitsFor(fsyncWaitMax + 4*time.Second), http.StatusServiceUnavailable, "Writes wait: the disk has not answered the fsync of the oldest write for 14s"},
		{0, http.StatusOK, "ready"},
	} {
		disk = step.wait
		w := httptest.NewRecorder()
		d.readiness(w, httptest.NewRequest(http.MethodGet, "/-/ready", nil))
		if text := w.Body.String(); w.Code != step.want || !strings.Contains(text, step.text) {
			t.Errorf("a wait of %s: %d %s", time.Duration(step.wait), w.Code, text)
		}
	}
}
