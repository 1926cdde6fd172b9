// Package kafkatest runs Kafka for tests: a fake cluster in the process, or one node of Apache Kafka. Tests of other
// packages exchange strings with this one, so that franz-go stays where it is.
package kafkatest
