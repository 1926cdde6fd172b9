package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func (m manifests) statefulSets() (out []*appsv1.StatefulSet) {
	for _, key := range m.keys() {
		if s, ok := m[key].(*appsv1.StatefulSet); ok {
			out = append(out, s)
		}
	}
	return out
}

// workload are the fields that a Deployment and a StatefulSet share.
type workload struct {
	name      string
	component string
	selector  *metav1.LabelSelector
	pod       corev1.PodTemplateSpec
	claims    []corev1.PersistentVolumeClaim
}

func (w workload) container() corev1.Container { return w.pod.Spec.Containers[0] }

func (w workload) env(name string) (corev1.EnvVar, bool) {
	i := slices.IndexFunc(w.container().Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return corev1.EnvVar{}, false
	}
	return w.container().Env[i], true
}

func workloads(t *testing.T, m manifests) []workload {
	t.Helper()
	d := get[*appsv1.Deployment](t, m, "Deployment m-spillway-gateway")
	out := []workload{{d.Name, "gateway", d.Spec.Selector, d.Spec.Template, nil}}
	for _, s := range m.statefulSets() {
		out = append(out, workload{s.Name, "storage", s.Spec.Selector, s.Spec.Template, s.Spec.VolumeClaimTemplates})
	}
	return out
}

// eachWorkload runs a test for each kind of pod of each release.
func eachWorkload(t *testing.T, f func(*testing.T, manifests, workload)) {
	t.Helper()
	for name, values := range map[string]string{"minimal": minimal, "zoned": zoned} {
		m := mustRender(t, values)
		for _, w := range workloads(t, m) {
			t.Run(name+"/"+w.name, func(t *testing.T) { f(t, m, w) })
		}
	}
}

// How long a process needs after SIGTERM beside http.shutdown_timeout, in seconds: leases, copies, and closing its store.
const endSeconds = 5 + 5 + 5

func TestPodsHaveLongerToEndThanTheirProcesses(t *testing.T) {
	eachWorkload(t, func(t *testing.T, m manifests, w workload) {
		shutdown, _ := w.env("SPILLWAY_HTTP_SHUTDOWN_TIMEOUT")
		var seconds, pause int64
		if _, err := fmt.Sscanf(shutdown.Value, "%ds", &seconds); err != nil || seconds < 30 {
			t.Fatalf("http.shutdown_timeout is %q", shutdown.Value)
		}
		if w.component == "gateway" {
			pause = w.container().Lifecycle.PreStop.Sleep.Seconds
		}
		if got := *w.pod.Spec.TerminationGracePeriodSeconds; got <= pause+seconds+endSeconds {
			t.Errorf("a pod is killed %d s after it began to end; it pauses %d s, then its requests have %d s, and closing takes %d s", got, pause, seconds, endSeconds)
		}
	})
}

func TestStorageServersSayWhatFailsAsOneWithThem(t *testing.T) {
	m := mustRender(t, zoned)
	for _, w := range workloads(t, m)[1:] {
		host, _ := w.env("SPILLWAY_SERVER_HOST")
		if host.ValueFrom == nil || host.ValueFrom.FieldRef == nil || host.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
			t.Errorf("%s: server.host is not the node: %+v", w.name, host)
		}
		zone, _ := w.env("SPILLWAY_SERVER_ZONE")
		if zone.Value == "" || zone.Value != w.pod.Labels["spillway.dev/zone"] || !strings.HasSuffix(w.name, "-"+zone.Value) {
			t.Errorf("%s: server.zone is %q", w.name, zone.Value)
		}
		if w.pod.Spec.NodeSelector == nil && w.pod.Spec.Affinity == nil {
			t.Errorf("%s: its pods may run in every zone", w.name)
		}
	}
}

// TestStorageServersAreFoundByTheNameTheyRegister: the address is that of the pod behind the Service without an address of its own.
func TestStorageServersAreFoundByTheNameTheyRegister(t *testing.T) {
	m := mustRender(t, zoned)
	service := get[*corev1.Service](t, m, "Service m-spillway-storage")
	if service.Spec.ClusterIP != "None" || !service.Spec.PublishNotReadyAddresses {
		t.Errorf("%+v", service.Spec)
	}
	for _, s := range m.statefulSets() {
		w := workload{pod: s.Spec.Template}
		if s.Spec.ServiceName != service.Name {
			t.Errorf("%s: %s", s.Name, s.Spec.ServiceName)
		}
		address, _ := w.env("SPILLWAY_PEER_ADVERTISE")
		if address.Value != "$(POD_NAME).m-spillway-storage.ns.svc.cluster.local:8430" {
			t.Errorf("%s: %s", s.Name, address.Value)
		}
		// $(POD_NAME) is only known to variables that come later.
		if first := w.container().Env[0]; first.Name != "POD_NAME" || first.ValueFrom.FieldRef.FieldPath != "metadata.name" {
			t.Errorf("%s: %+v", s.Name, first)
		}
		if s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType || s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
			t.Errorf("%s: rows go with their pods", s.Name)
		}
		if s.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
			t.Errorf("%s: an upgrade stops servers of several zones at once", s.Name)
		}
	}
	if one := mustRender(t, minimal).statefulSets()[0]; one.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		t.Errorf("an upgrade of one zone waits: %s", one.Spec.UpdateStrategy.Type)
	}
}

// TestEverythingThatPodsNameIsThere: volumes of mounts, ports of probes, ConfigMaps and Secrets of volumes, files of variables.
func TestEverythingThatPodsNameIsThere(t *testing.T) {
	given := []string{"etcd-client", "storage-certs", "gateway-certs"} // Secrets that the user makes
	eachWorkload(t, func(t *testing.T, m manifests, w workload) {
		mounted := map[string]string{} // volume by path
		for _, v := range w.container().VolumeMounts {
			mounted[v.MountPath] = v.Name
		}
		var there []string
		for _, v := range w.pod.Spec.Volumes {
			there = append(there, v.Name)
			if c := v.ConfigMap; c != nil && m["ConfigMap "+c.Name] == nil {
				t.Errorf("there is no ConfigMap %s", c.Name)
			}
			if s := v.Secret; s != nil && m["Secret "+s.SecretName] == nil && !slices.Contains(given, s.SecretName) {
				t.Errorf("there is no Secret %s", s.SecretName)
			}
		}
		for _, c := range w.claims {
			there = append(there, c.Name)
		}
		for at, name := range mounted {
			if !slices.Contains(there, name) {
				t.Errorf("%s: there is no volume %s", at, name)
			}
		}
		if len(there) != len(mounted) {
			t.Errorf("volumes %q, mounted %v", there, mounted)
		}
		for _, e := range w.container().Env {
			under := func(dir string) bool { return strings.HasPrefix(e.Value+"/", dir+"/") }
			if strings.HasPrefix(e.Value, "/") && !slices.ContainsFunc(slices.Collect(keysOf(mounted)), under) {
				t.Errorf("%s=%s is on no volume", e.Name, e.Value)
			}
		}
		ports := map[string]bool{}
		for _, p := range w.container().Ports {
			ports[p.Name] = true
		}
		for _, p := range []*corev1.Probe{w.container().StartupProbe, w.container().ReadinessProbe, w.container().LivenessProbe} {
			if p == nil || p.HTTPGet == nil || !ports[p.HTTPGet.Port.StrVal] {
				t.Errorf("probe %+v, ports %v", p, ports)
			}
		}
		if ready, alive := w.container().ReadinessProbe.HTTPGet.Path, w.container().LivenessProbe.HTTPGet.Path; ready != "/-/ready" || alive != "/-/healthy" {
			t.Errorf("ready by %s, alive by %s", ready, alive)
		}
	})
}

func keysOf[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestPodsMayDoNoMoreThanTheyNeed(t *testing.T) {
	eachWorkload(t, func(t *testing.T, _ manifests, w workload) {
		pod, c := w.pod.Spec, w.container().SecurityContext
		if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			t.Error("variables of services, such as SPILLWAY_PORT, keep a process from starting")
		}
		if *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.FSGroup != *pod.SecurityContext.RunAsUser || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%+v", pod.SecurityContext)
		}
		if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%+v", c)
		}
	})
}

// TestSelectorsFindTheirPodsAndNoOthers: those of controllers, Services, budgets and network policies.
func TestSelectorsFindTheirPodsAndNoOthers(t *testing.T) {
	eachWorkload(t, func(t *testing.T, m manifests, w workload) {
		finds := func(what string, s *metav1.LabelSelector, want bool) {
			t.Helper()
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				t.Fatal(err)
			}
			if got := selector.Matches(labels.Set(w.pod.Labels)); got != want {
				t.Errorf("%s finds pods of %s: %t", what, w.name, got)
			}
		}
		for _, other := range workloads(t, m) {
			finds("the controller "+other.name, other.selector, other.name == w.name)
		}
		for name, component := range map[string]string{"m-spillway": "gateway", "m-spillway-storage": "storage"} {
			finds("Service "+name, &metav1.LabelSelector{MatchLabels: get[*corev1.Service](t, m, "Service "+name).Spec.Selector}, component == w.component)
		}
		for _, component := range []string{"gateway", "storage"} {
			finds("budget", get[*policyv1.PodDisruptionBudget](t, m, "PodDisruptionBudget m-spillway-"+component).Spec.Selector, component == w.component)
			finds("network policy", &get[*networkingv1.NetworkPolicy](t, m, "NetworkPolicy m-spillway-"+component).Spec.PodSelector, component == w.component)
		}
		peers := get[*networkingv1.NetworkPolicy](t, m, "NetworkPolicy m-spillway-storage").Spec.Ingress[0]
		if len(peers.From) != 2 || peers.Ports[0].Port.StrVal != "peer" {
			t.Errorf("%+v", peers)
		}
	})
}

// TestProbesGetThroughWhereClientsNeedCertificates: the kubelet has none, and pods would be killed again and again.
func TestProbesGetThroughWhereClientsNeedCertificates(t *testing.T) {
	const access = "access: {secret: s, webConfig: web.yml, tls: true, clientCertificates: %t}\n"
	for needed, scheme := range map[bool]corev1.URIScheme{false: corev1.URISchemeHTTPS, true: ""} {
		c := get[*appsv1.Deployment](t, mustRender(t, minimal+fmt.Sprintf(access, needed)), "Deployment m-spillway-gateway").Spec.Template.Spec.Containers[0]
		for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if (p.TCPSocket != nil) != needed || (p.HTTPGet == nil) != needed {
				t.Errorf("client certificates needed: %t: %+v", needed, p)
			} else if p.HTTPGet != nil && p.HTTPGet.Scheme != scheme {
				t.Errorf("a probe by %s", p.HTTPGet.Scheme)
			}
		}
	}
}
