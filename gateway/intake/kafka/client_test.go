package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Topics that were made after the start were not read for five minutes, the client's default.
func TestTopicsMadeLaterAreFoundSoon(t *testing.T) {
	c := Cluster{Brokers: []string{"127.0.0.1:1"}, Topics: []Topic{{Regex: "metrics-.*"}}}
	c.setDefaults()
	opts, err := c.options()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if age, ok := client.OptValue(kgo.MetadataMaxAge).(time.Duration); !ok || age > 30*time.Second {
		t.Errorf("topics are looked for every %v", age)
	}
}
