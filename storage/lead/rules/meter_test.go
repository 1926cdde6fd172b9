package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMeter(t *testing.T) {
	m, led := meter{}, map[point.PartitionID]bool{1: true, 2: true, 3: true}
	rows := map[point.PartitionID]uint64{1: 1_000_000, 2: 50, 3: 0}
	at := time.Hour
	look := func(want string) {
		t.Helper()
		var all []Count
		for id, n := range rows {
			all = append(all, Count{lease.Partition{Table: "cpu", ID: id}, n})
		}
		m.count(at, all, func(p lease.Partition) bool { return led[p.ID] }, 100)
		got := fmt.Sprint(m.known, " rest ", m.rest)
		for _, x := range m.hot {
			got += fmt.Sprintf(" %s %d for %v", x.Partition, x.Rows, x.For)
		}
		if got != want {
			t.Errorf("at %v: %s, want %s", at, got, want)
		}
		at += MeterEvery
	}
	add := func(perSecond map[point.PartitionID]uint64) {
		for id, n := range perSecond {
			rows[id] += n * uint64(MeterEvery/time.Second)
		}
	}
	look("false rest 0")
	add(map[point.PartitionID]uint64{1: 2000, 2: 60})
	look("true rest 60 cpu/1 2000 for 5s") // the first rate is the whole rate
	add(map[point.PartitionID]uint64{1: 2000, 2: 60, 3: 6000})
	look("true rest 60 cpu/1 2000 for 10s cpu/3 921 for 10s") // it has been led for as long, without rows: a batch is no load yet
	led[1] = false
	add(map[point.PartitionID]uint64{1: 2000, 2: 60})
	look("true rest 60 cpu/3 779 for 15s") // one that was handed over is gone at once
	led[1] = true
	look("true rest 50 cpu/3 660 for 20s")
	add(map[point.PartitionID]uint64{1: 4000, 2: 60})
	look("true rest 52 cpu/1 4000 for 5s cpu/3 558 for 25s") // and whole after two looks where it is led anew
}

// A server of thousands of partitions names few of them, and no load is lost.
func TestMeterNamesFew(t *testing.T) {
	m := meter{}
	for look := range 2 {
		var all []Count
		for id := range 5000 {
			all = append(all, Count{lease.Partition{Table: "cpu", ID: point.PartitionID(id + 1)}, uint64(look * id * 5)})
		}
		m.count(Time(look+1)*MeterEvery, all, func(lease.Partition) bool { return true }, 100)
	}
	sum := m.rest
	for _, x := range m.hot {
		sum += x.Rows
	}
	if len(m.hot) != lease.HotMax || m.hot[0].Rows != 4999 || m.hot[lease.HotMax-1].Rows != 4984 || sum != 4999*5000/2 {
		t.Errorf("%d named, sum %d: %v", len(m.hot), sum, m.hot)
	}
}
