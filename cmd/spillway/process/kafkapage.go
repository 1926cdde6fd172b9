package process

import (
	"encoding/json"
	"net/http"

	"github.com/spillwaydb/spillway/gateway/intake/kafka"
)

// kafkaStatus serves the state of consumers; without any, an empty list.
func (d *door) kafkaStatus(w http.ResponseWriter, _ *http.Request) {
	s := kafka.Status{Clusters: []kafka.ClusterStatus{}}
	if d.kafka != nil {
		s = d.kafka.Status()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": s})
}
