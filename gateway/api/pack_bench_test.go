package api

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkPack compresses an answer with one series of whole percentages; compressMin follows from it.
func BenchmarkPack(b *testing.B) {
	for _, encoding := range []string{"gzip", "zstd"} {
		for _, size := range []int{1 << 10, 2 << 10, 4 << 10, 8 << 10, 64 << 10} {
			b.Run(fmt.Sprint(encoding, "/", size), func(b *testing.B) {
				in, out := seriesText(size), bytes.Buffer{}
				b.SetBytes(int64(len(in)))
				b.ReportAllocs()
				for b.Loop() {
					out.Reset()
					p := packers(encoding).Get().(packer)
					p.Reset(&out)
					if _, err := p.Write(in); err != nil {
						b.Fatal(err)
					}
					if err := p.Close(); err != nil {
						b.Fatal(err)
					}
					packers(encoding).Put(p)
				}
				b.ReportMetric(float64(out.Len()), "packed-B")
			})
		}
	}
}

func seriesText(size int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	b.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"hostname":"host_77"},"values":[`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `[%d,"%d"],`, 1767225600+60*i, rng.IntN(101))
	}
	return b.Bytes()
}
