package check

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const chartDir = "../helm/spillway"

// minimal is the least that an install says; zoned uses nearly every value.
const (
	minimal = `
coord: {url: "etcd://etcd:2379"}
peer: {insecure: true}
`
	zoned = `
image: {repository: registry.example/spillway, tag: v7, pullSecrets: [{name: registry}]}
serviceAccountName: spillway
coord: {url: "etcds://e1:2379,e2:2379/metrics", username: spillway, secret: etcd-client, ca: etcd-ca.crt, cert: user.crt, key: user.key, password: password}
peer: {storageSecret: storage-certs, gatewaySecret: gateway-certs, crl: true}
access: {files: {web.yml: "tls_server_config: {cert_file: tls.crt, key_file: tls.key}", tokens.yml: "tokens: []", tls.crt: certificate, tls.key: key}, webConfig: web.yml, tokens: tokens.yml, tls: true}
config: {log_format: json}
shutdownSeconds: 45
gateway:
  replicas: 3
  config: {tables: {retention: 30d}, kafka: [{name: k, brokers: ["k:9092"], group: g, topics: [{name: cpu, format: line}], dead_letter: {topic: dead}}]}
  preStopSeconds: 15
  service: {type: LoadBalancer, port: 80, annotations: {a: b}}
  extraEnv: [{name: SPILLWAY_LOG_LEVEL, value: debug}]
  podAnnotations: {a: b}
  podLabels: {team: metrics}
  nodeSelector: {pool: front}
  tolerations: [{key: front, operator: Exists}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}]}}}
  priorityClassName: high
storage:
  zones:
    - {name: a, replicas: 2, nodeSelector: {topology.kubernetes.io/zone: eu-1a}, storageClass: fast-a}
    - {name: b, replicas: 2, nodeSelector: {topology.kubernetes.io/zone: eu-1b}}
    - {name: c, replicas: 1, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: In, values: [c]}]}]}}}}
  config: {storage: {copies: true}, log_format: logfmt}
  persistence: {size: 1Ti, storageClass: fast, annotations: {a: b}}
  logPersistence: {enabled: true, size: 8Gi, storageClass: nvme}
  extraEnv: [{name: SPILLWAY_LOG_LEVEL, value: debug}]
  extraArgs: [--no-master]
  podAnnotations: {a: b}
  podLabels: {team: metrics}
  tolerations: [{key: store, operator: Exists}]
  priorityClassName: high
networkPolicy:
  clients: [{namespaceSelector: {matchLabels: {team: apps}}}]
  metrics: [{namespaceSelector: {matchLabels: {team: monitoring}}}]
`
)

// manifests are the objects of a release, by kind and name.
type manifests map[string]runtime.Object

// render returns what an install would send to Kubernetes, each object decoded strictly: an unknown or repeated field is an error.
func render(values string) (manifests, string, error) {
	ch, err := loader.Load(chartDir)
	if err != nil {
		return nil, "", err
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return nil, "", err
	}
	full, err := chartutil.ToRenderValues(ch, given, chartutil.ReleaseOptions{Name: "m", Namespace: "ns", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(ch, full)
	if err != nil {
		return nil, "", err
	}
	out, notes := manifests{}, ""
	for name, text := range files {
		if path.Base(name) == "NOTES.txt" {
			notes = text
			continue
		}
		if err := out.add(text); err != nil {
			return nil, "", fmt.Errorf("%s: %w\n%s", name, err, text)
		}
	}
	return out, notes, nil
}

func (m manifests) add(text string) error {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(kinds); err != nil {
			return err
		}
	}
	strict := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	docs := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	defer docs.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := docs.Read(buf)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var some any
		if err := yaml.Unmarshal(buf[:n], &some); err != nil {
			return err
		} else if some == nil {
			continue // only comments
		}
		object, kind, err := strict.Decode(buf[:n], nil, nil)
		if err != nil {
			return err
		}
		named, ok := object.(interface{ GetName() string })
		if !ok {
			return fmt.Errorf("%s has no name", kind)
		}
		key := kind.Kind + " " + named.GetName()
		if m[key] != nil {
			return fmt.Errorf("%s comes twice", key)
		}
		m[key] = object
	}
}

func mustRender(t *testing.T, values string) manifests {
	t.Helper()
	m, _, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// get returns an object of a release.
func get[T runtime.Object](t *testing.T, m manifests, key string) T {
	t.Helper()
	object, ok := m[key].(T)
	if !ok {
		t.Fatalf("the release has no %s, but %q", key, m.keys())
	}
	return object
}

func (m manifests) keys() []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestTheChartLints(t *testing.T) {
	for name, values := range map[string]string{"defaults": "", "minimal": minimal, "zoned": zoned} {
		t.Run(name, func(t *testing.T) {
			given, err := chartutil.ReadValues([]byte(values))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.All(chartDir, given, "ns", true).Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

func TestAReleaseHasTheseObjects(t *testing.T) {
	common := []string{"ConfigMap m-spillway-gateway", "ConfigMap m-spillway-storage", "Deployment m-spillway-gateway", "NetworkPolicy m-spillway-gateway", "NetworkPolicy m-spillway-storage",
		"PodDisruptionBudget m-spillway-gateway", "PodDisruptionBudget m-spillway-storage", "Service m-spillway", "Service m-spillway-storage"}
	for values, more := range map[string][]string{
		minimal: {"StatefulSet m-spillway-storage-a"},
		zoned:   {"Secret m-spillway-access", "StatefulSet m-spillway-storage-a", "StatefulSet m-spillway-storage-b", "StatefulSet m-spillway-storage-c"},
	} {
		want := slices.Concat(common, more)
		slices.Sort(want)
		if got := mustRender(t, values).keys(); !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", values, got, want)
		}
	}
}

// TestMistakesAreRefusedBeforeTheyAreInstalled: what a pod would notice late or never is an error of the install, which says what to do.
func TestMistakesAreRefusedBeforeTheyAreInstalled(t *testing.T) {
	for values, want := range map[string]string{
		"":                                       "coord.url is not set",
		"coord: {url: \"etcd://e:2379\"}":        "peer.storageSecret and peer.gatewaySecret are not set",
		minimal + "storge: {}":                   "storge",
		minimal + "gateway: {replica: 3}":        "replica",
		minimal + "gateway: {preStopSeconds: 0}": "preStopSeconds",
		minimal + "nameOverride: a-name-of-more-than-thirty-characters":                                          "set nameOverride",
		minimal + "access: {tokens: tokens.yml}":                                                                 "need access.secret or access.files",
		minimal + "access: {secret: s}":                                                                          "everybody would be let in",
		minimal + "access: {files: {a.yml: x}, tokens: tokens.yml}":                                              "not among access.files",
		minimal + "access: {files: {a.yml: x}, secret: s, tokens: a.yml}":                                        "choose one",
		minimal + "storage: {zones: []}":                                                                         "zones",
		minimal + "storage: {zones: [{name: Zone, replicas: 1}]}":                                                "name",
		minimal + "storage: {zones: [{name: a, replicas: 1}, {name: b, replicas: 1}]}":                           "neither nodeSelector nor affinity",
		minimal + "storage: {zones: [{name: a, replicas: 1, nodeSelector: {x: \"y\"}}, {name: a, replicas: 1}]}": "two zones",
		minimal + "config: {kafka: [{name: k, brokers: [k:9092], topics: [{name: t, format: line}]}]}":           "no dead_letter.topic",
		"coord: {url: \"etcd://e:2379\", ca: ca.crt}\npeer: {insecure: true}":                                    "coord.secret",
		"coord: {url: \"etcd://e:2379\"}\npeer: {insecure: true, storageSecret: s}":                              "choose one",
	} {
		if _, _, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nshould be refused with %q: %v", values, want, err)
		}
	}
}

// TestTheNotesNameEveryStoragePod: a certificate that lacks keeps its pod from starting.
func TestTheNotesNameEveryStoragePod(t *testing.T) {
	m, notes, err := render(zoned)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range m.statefulSets() {
		for n := range int(*s.Spec.Replicas) {
			pod := fmt.Sprintf("%s-%d", s.Name, n)
			if want := fmt.Sprintf("%s=%s.%s.ns.svc.cluster.local", pod, pod, s.Spec.ServiceName); !strings.Contains(notes, want) {
				t.Errorf("the notes lack %s:\n%s", want, notes)
			}
		}
	}
}
