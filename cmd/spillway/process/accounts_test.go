package process

import (
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// Every account's floor fits beside the others, with the least memory allowed and with much.
func TestFloorsOfAccountsFit(t *testing.T) {
	for _, bytes := range []int64{settings.MemoryLeast, 512 << 20, 4<<30 + 17, 1 << 40} {
		a, err := openAccounts(bytes, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.forKafka(64 << 20); err != nil {
			t.Fatal(err)
		}
		if shared := a.heads.Free() - a.heads.Share().Floor; shared < bytes/8 {
			t.Errorf("%d of %d bytes are for whichever asks first", shared, bytes)
		}
	}
}
