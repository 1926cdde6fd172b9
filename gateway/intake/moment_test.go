package intake

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/point"
)

const onTuesday = point.Nanos(1_796_083_200e9) // 2026-12-01

func momentOf(t *testing.T, text string, now present) (point.Nanos, error) {
	t.Helper()
	list, err := statements(text)
	if err != nil || len(list) > 1 {
		t.Fatal(list, err)
	}
	return moment(append(list, nil)[0], now)
}

// TestMoments: the times of InfluxQL, in all its units.
func TestMoments(t *testing.T) {
	const day = point.Nanos(24 * time.Hour)
	for text, want := range map[string]point.Nanos{
		"now()":                          onTuesday,
		"NOW ( )":                        onTuesday,
		"now() - 30d":                    onTuesday - 30*day,
		"now()-30d":                      onTuesday - 30*day,
		"now() -30d":                     onTuesday - 30*day,
		"now() - 4w2d + 12h":             onTuesday - 30*day + day/2,
		"now() + 1m1s1ms1u1ns":           onTuesday + 61_001_001_001,
		"now() - 1µ":                     onTuesday - 1000,
		"now() - 0s":                     onTuesday,
		"'2026-12-01'":                   onTuesday,
		"'2026-12-01 00:00:00'":          onTuesday,
		"'2026-12-01 00:00:00.000001'":   onTuesday + 1000,
		"'2026-12-01T01:00:00+01:00'":    onTuesday,
		"'2026-12-01T00:00:00Z' - 1h30m": onTuesday - point.Nanos(90*time.Minute),
		"1796083200000000000":            onTuesday,
		"'1796083200000000000'":          onTuesday,
		"1796083200000000000 - 6m":       onTuesday - point.Nanos(6*time.Minute),
		"1796083200000000000ns":          onTuesday,
		"1796083200000000u":              onTuesday,
		"1796083200000000µ":              onTuesday,
		"1796083200000ms":                onTuesday,
		"1796083200s":                    onTuesday,
		"29934720m - 1d":                 onTuesday - day,
		"498912h":                        onTuesday,
		"20788d":                         onTuesday,
		"2969w5d":                        onTuesday,
		"-5":                             -5,
		"-1h":                            -point.Nanos(time.Hour),
		"9223372036854775807":            1<<63 - 1,
	} {
		if got, err := momentOf(t, text, present{at: onTuesday}); got != want || err != nil {
			t.Errorf("%s is %d %v, want %d", text, got, err, want)
		}
	}
}

// TestATimeThatIsNotUnderstoodIsRefused, and the error names what is not: InfluxDB reads 2026-12-01 without quotes as 2013 ns.
func TestATimeThatIsNotUnderstoodIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"":                          "found no time",
		"now() - 30":                `found "30", expected a duration with units`,
		"now() - 30M":               `found "30M", expected a duration with units`,
		"now() - 1mo":               `found "1mo"`,
		"now() - 1y":                `found "1y"`,
		"now() - 3 0d":              `found "3 0d"`,
		"now() 30d":                 `found "30d", expected + or -`,
		"now() - INF":               `found "INF"`,
		"now() -- 30d":              `found "", expected a duration`,
		"now() - 1.5d":              `found "1.5d"`,
		"now() * 2":                 `found "*2", expected + or -`,
		"now() - 106752d":           `found "106752d"`,
		"now() - 100000d - 100000d": "beyond those that rows can have",
		"'9999-12-31' - 30d":        "beyond those that rows can have",
		"9223372036854775807 - 1s":  "beyond those that rows can have",
		"now(1)":                    `found "now(1)"`,
		"now":                       `found "now"`,
		"(now() - 30d)":             `found "(now()"`,
		"now() - '30d'":             `found "30d" after a time`,
		"'now() - 30d'":             `invalid time "now() - 30d"`,
		"'2026-12-01' '2026-12-02'": `found "2026-12-02" after a time`,
		"2026-12-01":                "a date stands in quotes",
		"1e18":                      `found "1e18"`,
		"1.5s":                      `found "1.5s"`,
		"INF":                       `found "INF"`,
		"yesterday":                 `found "yesterday"`,
		"now() - " + strings.Repeat("9", 200) + "d": "expected a duration",
	} {
		if got, err := momentOf(t, text, present{at: onTuesday}); err == nil || !strings.Contains(err.Error(), says) || len(err.Error()) > 600 {
			t.Errorf("%s is %d, the error %v, want %s", text, got, err, says)
		}
	}
}

// TestNowIsRefusedWhileTheClockIsInDoubt: a clock that was set ahead by years would delete all rows. Other times are read.
func TestNowIsRefusedWhileTheClockIsInDoubt(t *testing.T) {
	c := clock.New()
	wall, steady := c.Both()
	for _, ahead := range []time.Duration{-24 * time.Hour, 30 * 24 * time.Hour} {
		c.Judge(clock.State{Verdict: clock.Unsure, Ref: wall - steady - int64(ahead), Within: clock.NearMax})
		n := nowOf(c)
		if _, err := momentOf(t, "now() - 30d", n); err == nil || !strings.Contains(err.Error(), "now() is not known here. The clock of this machine says ") || !errors.Is(err, n.err) {
			t.Errorf("ahead by %v: %v", ahead, err)
		}
		if got, err := momentOf(t, "'2026-12-01'", n); got != onTuesday || err != nil {
			t.Errorf("ahead by %v: %d %v", ahead, got, err)
		}
	}
	c.Judge(clock.State{Verdict: clock.Off, Ref: int64(onTuesday) - steady, Within: clock.NearMax}) // the median of the storage servers' clocks
	if got, err := momentOf(t, "now()", nowOf(c)); err != nil || got < onTuesday || got > onTuesday+point.Nanos(time.Hour) {
		t.Errorf("of a clock that is known to be wrong: %d %v", got, err)
	}
}

// TestNowIsRefusedUntilAGatewayHasComparedItsClock: one whose clock is a month ahead deletes no month in its first second.
func TestNowIsRefusedUntilAGatewayHasComparedItsClock(t *testing.T) {
	c := clock.NewServers()
	refused := func(when string) {
		t.Helper()
		if _, err := momentOf(t, "now() - 30d", nowOf(c.Clock)); err == nil || !strings.Contains(err.Error(), "not compared") {
			t.Errorf("%s: %v", when, err)
		}
	}
	refused("at the start")
	aMonthAgo := time.Now().Add(-30 * 24 * time.Hour)
	c.Listed([]point.Nanos{aMonthAgo.UnixNano(), aMonthAgo.UnixNano()})
	refused("of heartbeats of any age")
	c.Look()
	refused("while none comes")
	c.Observe("s1", aMonthAgo.UnixNano())
	c.Observe("s2", aMonthAgo.UnixNano())
	c.Look()
	if got, err := momentOf(t, "now()", nowOf(c.Clock)); err != nil || got < aMonthAgo.UnixNano() || got > aMonthAgo.Add(time.Hour).UnixNano() {
		t.Errorf("by the storage servers' clocks: %d %v", got, err)
	}
}
