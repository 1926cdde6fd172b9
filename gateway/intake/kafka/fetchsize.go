package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// fetchSize keeps a broker's answer near FetchBytesMax in memory. Brokers count compressed bytes, and lines of metrics
// compress tenfold and more: without it one round of fetches would hold many times the configured size.
type fetchSize struct {
	mu           sync.Mutex
	packed, open int64   // bytes read since the last look, compressed and not
	ratio        float64 // how much larger batches become; falls slowly
	asked        int32   // the size that fetches ask for now; 0: the configured one
}

// fetchBytesMin is the least that fetches ask for: a broker returns a whole batch however little we ask for.
const fetchBytesMin = 16 << 10

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (f *fetchSize) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, b kgo.FetchBatchMetrics) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.packed += int64(b.CompressedBytes)
	f.open += int64(b.UncompressedBytes)
}

// adapt returns the size that fetches shall ask for, of which most may be in memory, and whether it differs from the last by more than a fifth. The first was the
// configured one.
func (f *fetchSize) adapt(configured, most int32) (n int32, changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packed > 0 {
		now := max(1, float64(f.open)/float64(f.packed))
		f.packed, f.open = 0, 0
		f.ratio = max(now, 0.9*f.ratio+0.1*now)
	}
	n = min(most, max(fetchBytesMin, int32(float64(most)/max(1, f.ratio))))
	was := f.asked
	if was == 0 {
		was = configured
	}
	if n > was-was/5 && n < was+was/5 {
		return f.asked, false
	}
	f.asked = n
	return n, true
}
