package remotewrite_test

import (
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// withCreated marshals a request and gives every series a created timestamp, as senders of the drafts did.
func withCreated(t testing.TB, req *writev2.Request, ms int64) []byte {
	t.Helper()
	bare := &writev2.Request{Symbols: req.Symbols}
	body, err := bare.Marshal()
	for _, ts := range req.Timeseries {
		m, merr := ts.Marshal()
		if merr != nil {
			err = merr
		}
		m = protowire.AppendTag(m, 6, protowire.VarintType)
		m = protowire.AppendVarint(m, uint64(ms))
		body = protowire.AppendTag(body, 5, protowire.BytesType)
		body = protowire.AppendBytes(body, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func decode(t testing.TB, dec decoder, body []byte) (*point.Batch, contents) {
	t.Helper()
	b := point.GetBatch(point.NewDict(0))
	if err := dec.Decode(body, b); err != nil {
		t.Fatal(err)
	}
	return b, contentsOf(b)
}

func TestTruncationAnywhereIsAnErrorOrAShorterRequest(t *testing.T) {
	for _, version := range []string{"v1", "v2"} {
		for _, body := range goldenBodies(t, version) {
			for n := range body {
				checkTruncated(t, version, slices.Clip(body[:n]))
			}
		}
	}
}

func checkTruncated(t *testing.T, version string, body []byte) {
	t.Helper()
	dict := point.NewDict(0)
	if version == "v1" {
		checkV1(t, new(remotewrite.DecoderV1), dict, body)
	} else {
		checkV2(t, new(remotewrite.DecoderV2), dict, body)
	}
}

func TestLabelsInAnyPlaceAndSpellingAreOneSeries(t *testing.T) {
	name := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), pairMessage("__name__", "up"))
	job := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), pairMessage("job", "api"))
	odd := append([]byte{0x8a, 0x00}, protowire.AppendBytes(nil, pairMessage("job", "api"))...) // the tag in two bytes
	smp := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{tagTime, 5})
	bodies := [][]byte{
		slices.Concat(name, job, smp), slices.Concat(job, name, smp), slices.Concat(name, smp, job), slices.Concat(smp, name, job),
		slices.Concat(name, odd, smp), slices.Concat(smp, odd, name), slices.Concat(name, []byte{0x4a, 1, 'x'}, smp, job),
	}
	dict := point.NewDict(0)
	var dec remotewrite.DecoderV1
	for range 2 {
		b := point.GetBatch(dict)
		for _, ts := range bodies {
			if err := dec.Decode(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), ts), b); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range b.IDs {
			if id != 0 {
				t.Errorf("series %v beside %v", dict.Labels(id), dict.Labels(0))
			}
		}
		if len(b.IDs) != len(bodies) || len(b.Refused) != 0 || dict.Len() != 1 {
			t.Errorf("%d rows, %d series, refused %v", len(b.IDs), dict.Len(), b.Refused)
		}
		b.Put()
	}
}

const tagTime = 2 << 3

func pairMessage(name, value string) []byte {
	m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	return protowire.AppendString(protowire.AppendTag(m, 2, protowire.BytesType), value)
}

func TestRefsInAnyPlaceAndSpellingAreOneSeries(t *testing.T) {
	packed := func(refs ...byte) []byte { return append([]byte{0x0a, byte(len(refs))}, refs...) }
	smp := []byte{0x12, 2, tagTime, 5}
	symbols := []byte{0x22, 0, 0x22, 8, '_', '_', 'n', 'a', 'm', 'e', '_', '_', 0x22, 2, 'u', 'p', 0x22, 3, 'j', 'o', 'b', 0x22, 3, 'a', 'p', 'i'}
	series := [][]byte{
		slices.Concat(packed(1, 2, 3, 4), smp), slices.Concat(packed(3, 4, 1, 2), smp), slices.Concat(smp, packed(1, 2, 3, 4)),
		slices.Concat(packed(1, 2), smp, packed(3, 4)), slices.Concat(packed(1), smp, packed(2, 3, 4)),
		slices.Concat([]byte{8, 1, 8, 2, 8, 3, 8, 4}, smp), slices.Concat(packed(0x81, 0, 2, 0x83, 0x80, 0, 4), smp),
	}
	dict := point.NewDict(0)
	var dec remotewrite.DecoderV2
	for _, symbolsFirst := range []bool{true, false} {
		b := point.GetBatch(dict)
		var all []byte
		for _, ts := range series {
			all = protowire.AppendBytes(protowire.AppendTag(all, 5, protowire.BytesType), ts)
		}
		body := slices.Concat(symbols, all)
		if !symbolsFirst {
			body = slices.Concat(all, symbols)
		}
		if err := dec.Decode(body, b); err != nil {
			t.Fatal(err)
		}
		if len(b.IDs) != len(series) || dict.Len() != 1 || len(b.Refused) != 0 {
			t.Errorf("%d rows, %d series, refused %v", len(b.IDs), dict.Len(), b.Refused)
		}
		b.Put()
	}
}

func TestBothVersionsAgreeOnASeries(t *testing.T) {
	dict := point.NewDict(0)
	b := point.GetBatch(dict)
	defer b.Put()
	one, err := goldenV1()["exemplars_and_metadata"].Marshal()
	if err != nil {
		t.Fatal(err)
	}
	two, err := (&writev2.Request{
		Symbols:    []string{"", "job", "api", "instance", "10.0.0.1:9090", "__name__", "up"},
		Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{1, 2, 3, 4, 5, 6}, Samples: []writev2.Sample{{Timestamp: t0}}}},
	}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := new(remotewrite.DecoderV1).Decode(one, b); err != nil {
		t.Fatal(err)
	}
	if err := new(remotewrite.DecoderV2).Decode(two, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != 2 || b.IDs[0] != b.IDs[1] {
		t.Errorf("series %v of one label set", b.IDs)
	}
}

func TestEveryBitOfAValueIsKept(t *testing.T) {
	for _, bits := range []uint64{point.StaleNaN, 0x7ff8000000000001, 0xfff0000000000123, 0x8000000000000000, 1} {
		m := protowire.AppendFixed64([]byte{0x09}, bits)
		ts := slices.Concat(protowire.AppendBytes([]byte{0x0a}, pairMessage("__name__", "up")), protowire.AppendBytes([]byte{0x12}, append(m, tagTime, 5)))
		b, _ := decode(t, new(remotewrite.DecoderV1), protowire.AppendBytes([]byte{0x0a}, ts))
		if got := math.Float64bits(b.Values[0]); got != bits {
			t.Errorf("%016x became %016x", bits, got)
		}
		b.Put()
	}
}

func TestEachVersionSaysItWasGivenTheOther(t *testing.T) {
	for version, dec := range map[string]decoder{"v2": new(remotewrite.DecoderV1), "v1": new(remotewrite.DecoderV2)} {
		b := point.GetBatch(point.NewDict(0))
		err := dec.Decode(goldenBodies(t, version)["samples"], b)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "content type") {
			t.Errorf("a %s body: %v", version, err)
		}
		b.Put()
	}
}

// bombs are bodies that promise or repeat far more than they are.
func bombs() map[string][]byte {
	huge := binary.AppendUvarint(nil, math.MaxInt64)
	series := func(m []byte) []byte { return protowire.AppendBytes([]byte{0x0a}, m) }
	named := protowire.AppendBytes([]byte{0x0a}, pairMessage("__name__", "up"))
	times := func(n int, unit ...byte) []byte { return slices.Repeat(unit, n) }
	return map[string][]byte{
		"v1 length of a series":     append([]byte{0x0a}, huge...),
		"v1 length of a label":      series(append([]byte{0x0a}, huge...)),
		"v1 negative length":        append([]byte{0x0a}, binary.AppendUvarint(nil, math.MaxUint64)...),
		"v1 length of packed":       series(slices.Concat(named, protowire.AppendBytes([]byte{0x22}, append([]byte{0x62}, huge...)))),
		"v1 million empty series":   times(1_100_000, 0x0a, 0),
		"v1 million samples":        series(slices.Concat(named, times(1_100_000, 0x12, 0))),
		"v1 million samples, alone": series(times(1_100_000, 0x12, 0)),
		"v1 million histograms":     series(slices.Concat(named, times(1_100_000, 0x22, 0))),
		"v1 million exemplars":      series(slices.Concat(named, times(1_100_000, 0x1a, 0))),
		"v1 million metadata":       times(1_100_000, 0x1a, 0),
		"v1 million labels":         series(times(1_100_000, 0x0a, 0)),
		"v1 million buckets":        series(slices.Concat(named, protowire.AppendBytes([]byte{0x22}, protowire.AppendBytes([]byte{0x62}, make([]byte, 2_000_000))))),
		"v2 half a million symbols": times(500_000, 0x22, 0),
		"v2 too many symbols":       times(1_100_000, 0x22, 0),
		"v2 million series":         append([]byte{0x22, 0}, times(1_100_000, 0x2a, 0)...),
		"v2 million references":     append([]byte{0x22, 0}, protowire.AppendBytes([]byte{0x2a}, protowire.AppendBytes([]byte{0x0a}, make([]byte, 2_000_000)))...),
		"v2 length of references":   append([]byte{0x22, 0}, protowire.AppendBytes([]byte{0x2a}, append([]byte{0x0a}, huge...))...),
	}
}

// bombBytesMax bounds the memory that a bomb of about 2 MB may cost: the worst is a request that is just within RowsMax.
const bombBytesMax = 128 << 20

func TestBombsTakeLittle(t *testing.T) {
	for name, body := range bombs() {
		t.Run(name, func(t *testing.T) {
			b := &point.Batch{Dict: point.NewDict(0)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := newDecoder(name[:2]).Decode(body, b)
			runtime.ReadMemStats(&after)
			took := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes took %d KiB: %v", len(body), took>>10, err)
			if took > bombBytesMax {
				t.Errorf("took %d MiB", took>>20)
			}
			if err == nil && b.RefusedRows == 0 && len(b.Refused) == 0 && !strings.Contains(name, "symbols") {
				t.Error("taken without a word")
			}
		})
	}
}

func TestFullDictionaryIsARefusalThatIsRetried(t *testing.T) {
	req := &prompb.WriteRequest{}
	for range point.RefusalsMax + 5 {
		req.Timeseries = append(req.Timeseries, prompb.TimeSeries{Samples: []prompb.Sample{{Value: 1, Timestamp: t0}}})
	}
	for _, metric := range []string{"up", "down"} {
		req.Timeseries = append(req.Timeseries, prompb.TimeSeries{Labels: v1Labels("__name__", metric), Samples: []prompb.Sample{{Value: 1, Timestamp: t0}}})
	}
	body, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b := point.GetBatch(point.NewDict(1))
	defer b.Put()
	var dec remotewrite.DecoderV1
	if err := dec.Decode(body, b); err != nil {
		t.Fatal(err)
	}
	if len(b.IDs) != 1 || b.RefusedRows != point.RefusalsMax+6 {
		t.Errorf("%d rows, %d refused", len(b.IDs), b.RefusedRows)
	}
	o := remotewrite.Outcome{Refused: b.Refused, RefusedRows: b.RefusedRows, Written: dec.Taken()}
	if a := o.Answer(remotewrite.V1); a.Status != 503 {
		t.Errorf("status %d: the reason that passes was crowded out", a.Status)
	}
}

func TestMetadataIsGivenOnceAFamilyAndRequest(t *testing.T) {
	req := &writev2.Request{Symbols: []string{"", "__name__", "rpc_bucket", "rpc_sum", "rpc_count", "Latency.", "Other."}}
	for i := range 6 {
		req.Timeseries = append(req.Timeseries, writev2.TimeSeries{
			LabelsRefs: []uint32{1, uint32(2 + i%3)}, Samples: []writev2.Sample{{Timestamp: t0}},
			Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_HISTOGRAM, HelpRef: 5},
		})
	}
	body, err := req.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	dict := point.NewDict(0)
	var dec remotewrite.DecoderV2
	for range 3 {
		b := point.GetBatch(dict)
		if err := dec.Decode(body, b); err != nil {
			t.Fatal(err)
		}
		want := []point.MetadataRow{{Metric: "rpc", Type: "histogram", Help: "Latency."}}
		if diff := cmp.Diff(want, b.Metadata); diff != "" {
			t.Error(diff)
		}
		b.Put()
	}
}
