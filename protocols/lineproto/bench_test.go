package lineproto

import (
	"bytes"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
)

const benchTime = 1451606400000000000

var cpuFields = []string{
	"usage_user", "usage_system", "usage_idle", "usage_nice", "usage_iowait", "usage_irq", "usage_softirq",
	"usage_steal", "usage_guest", "usage_guest_nice",
}

// cpuLines is a devops-like body: hosts lines with ten integer fields each.
func cpuLines(hosts int, at int64) []byte {
	var b bytes.Buffer
	rng := rand.New(rand.NewSource(1))
	for h := range hosts {
		fmt.Fprintf(&b, "cpu,hostname=host_%d,region=eu-west-1,datacenter=eu-west-1b,rack=%d,os=Ubuntu15.10,arch=x64,team=SF,service=6,service_version=0,service_environment=test ", h, h%100)
		for i, f := range cpuFields {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s=%di", f, rng.Intn(100))
		}
		fmt.Fprintf(&b, " %d\n", at)
	}
	return b.Bytes()
}

// floatLines has ten fields with fractions in a line.
func floatLines(hosts int, at int64) []byte {
	var b bytes.Buffer
	rng := rand.New(rand.NewSource(2))
	for h := range hosts {
		fmt.Fprintf(&b, "cpu,hostname=host_%d,region=eu-west-1 ", h)
		for i, f := range cpuFields {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s=%.4f", f, rng.Float64()*100)
		}
		fmt.Fprintf(&b, " %d\n", at)
	}
	return b.Bytes()
}

// singleLines has one field in a line.
func singleLines(hosts int, at int64) []byte {
	var b bytes.Buffer
	for h := range hosts {
		fmt.Fprintf(&b, "temperature,sensor=s%d,site=north value=%d.25 %d\n", h, h%40, at)
	}
	return b.Bytes()
}

// mixedLines are lines like Telegraf's: fields in another order every time, strings, booleans, long floats.
func mixedLines(hosts int, at int64, seed int64) []byte {
	var b bytes.Buffer
	rng := rand.New(rand.NewSource(seed))
	for h := range hosts {
		fmt.Fprintf(&b, "disk,host=host_%d,device=sda1,fstype=ext4,path=/var ", h)
		fields := []string{
			fmt.Sprintf("total=%di", 1<<40), fmt.Sprintf("free=%di", rng.Int63n(1<<40)), fmt.Sprintf("used_percent=%v", rng.Float64()*100),
			fmt.Sprintf("inodes_free=%du", rng.Int63n(1<<30)), "readonly=false", `mode="rw,relatime"`, fmt.Sprintf("load=%v", rng.NormFloat64()),
		}
		rng.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		fmt.Fprintf(&b, "%s %d\n", strings.Join(fields, ","), at)
	}
	return b.Bytes()
}

// report reports the CPU time of a row.
func report(b *testing.B, rows int, since time.Duration) {
	spent := cputime.Used() - since
	b.ReportMetric(float64(rows)/spent.Seconds()/1e6, "Mrows/cpu-s")
	b.ReportMetric(float64(spent)/float64(rows), "cpu-ns/row")
}

func benchKnown(b *testing.B, bodies ...[]byte) {
	dict := point.NewDict(0)
	d := Decoder{Settings: Settings{Partial: true}}
	batch := point.GetBatch(dict)
	for _, body := range bodies {
		d.Decode(body, benchTime, batch)
	}
	if batch.RefusedRows > 0 {
		b.Fatal(batch.Refused[0])
	}
	rows, turn := 0, 0
	b.ReportAllocs()
	start := cputime.Used()
	for b.Loop() {
		body := bodies[turn%len(bodies)]
		turn++
		batch.Reset()
		batch.Dict = dict
		d.Decode(body, benchTime, batch)
		rows += batch.Rows()
	}
	report(b, rows, start)
}

func BenchmarkKnownCPU10Fields(b *testing.B) { benchKnown(b, cpuLines(1000, benchTime)) }
func BenchmarkKnownCPU10kHosts(b *testing.B) { benchKnown(b, cpuLines(10_000, benchTime)) }
func BenchmarkKnown10Floats(b *testing.B)    { benchKnown(b, floatLines(1000, benchTime)) }
func BenchmarkKnown1Field(b *testing.B)      { benchKnown(b, singleLines(1000, benchTime)) }
func BenchmarkKnownMixedShuffled(b *testing.B) {
	benchKnown(b, mixedLines(1000, benchTime, 1), mixedLines(1000, benchTime, 2), mixedLines(1000, benchTime, 3))
}

func BenchmarkNewSeries(b *testing.B) {
	body := cpuLines(1000, benchTime)
	d := Decoder{Settings: Settings{Partial: true}}
	batch := point.GetBatch(nil)
	rows := 0
	b.ReportAllocs()
	start := cputime.Used()
	for b.Loop() {
		batch.Reset()
		batch.Dict = point.NewDict(0)
		d.Decode(body, benchTime, batch)
		rows += batch.Rows()
	}
	report(b, rows, start)
}

func BenchmarkNumbers(b *testing.B) {
	for _, s := range []string{"58i", "2.5", "95.1234", "1099511627776i", "37.45401188473625", "1e-7", "-0.000123"} {
		b.Run(s, func(b *testing.B) {
			text := []byte(s + ",")
			for b.Loop() {
				if _, _, ok := number(text, 0); !ok {
					if _, why := parseValue(text[:len(text)-1]); why != "" {
						b.Fatal(why)
					}
				}
			}
		})
	}
}

// BenchmarkByteLoop is a yardstick: one hash a line, every byte of the fields looked at once, every integer summed, and
// nothing found, compared or kept. Results are quoted as ratios to this one, since machines are shared.
func BenchmarkByteLoop(b *testing.B) {
	body := cpuLines(1000, benchTime)
	dict := point.NewDict(0)
	rows, sum := 0, uint64(0)
	start := cputime.Used()
	for b.Loop() {
		for p := 0; p < len(body); {
			e := p + bytes.IndexByte(body[p:], ' ')
			sum += dict.Hash(body[p:e]).Lo
			for p = e; body[p] != '\n'; p++ {
				if body[p] != '=' {
					continue
				}
				n := uint64(0)
				for p++; body[p]-'0' < 10; p++ {
					n = n*10 + uint64(body[p]-'0')
				}
				sum += n
				rows++
			}
			p++
		}
	}
	report(b, rows, start)
	if sum == 0 {
		b.Fatal("nothing was read")
	}
}
