package check

import (
	"fmt"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// fixed is what Kubernetes refuses to change in objects that exist.
func (m manifests) fixed() map[string]any {
	out := map[string]any{}
	for name, object := range m {
		switch o := object.(type) {
		case *appsv1.StatefulSet:
			out[name] = []any{o.Spec.ServiceName, o.Spec.Selector, o.Spec.PodManagementPolicy, o.Spec.VolumeClaimTemplates}
		case *appsv1.Deployment:
			out[name] = o.Spec.Selector
		case *corev1.Service:
			out[name] = o.Spec.ClusterIP
		}
	}
	return out
}

// TestUpgradesChangeNothingThatIsFixed: an upgrade that Kubernetes refuses for one object leaves a release half changed.
func TestUpgradesChangeNothingThatIsFixed(t *testing.T) {
	before, _, err := render(minimal)
	if err != nil {
		t.Fatal(err)
	}
	f := func(values string, want bool) {
		t.Helper()
		after, _, err := render(minimal + values)
		if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		was, is := before.fixed(), after.fixed()
		for name := range was {
			if is[name] == nil {
				t.Errorf("%s: %s is gone", values, name)
			} else if same := reflect.DeepEqual(was[name], is[name]); same != want && (want || name == "StatefulSet m-spillway-storage-a") {
				t.Errorf("%s: %s: same: %t\n%v\n%v", values, name, same, was[name], is[name])
			}
		}
	}
	f("image: {tag: v8, repository: other}", true)
	f("config: {log_level: debug}\nshutdownSeconds: 60", true)
	f("gateway: {replicas: 5, podLabels: {a: b}, podAnnotations: {a: b}, config: {tables: {retention: 30d}}, service: {type: LoadBalancer, port: 80}}", true)
	f("storage: {podLabels: {a: b}, config: {storage: {copies: true}}, resources: {limits: {memory: 8Gi}}, startupSeconds: 60, updateStrategy: OnDelete}", true)
	f("storage: {zones: [{name: a, replicas: 5}]}", true)
	f("storage: {zones: [{name: a, replicas: 3, nodeSelector: {z: a}}, {name: b, replicas: 3, nodeSelector: {z: b}}]}", true)
	f("peer: {insecure: false, storageSecret: s, gatewaySecret: g}", true)
	f("podDisruptionBudget: {enabled: true}\nnetworkPolicy: {enabled: true}\nclusterDomain: other.local", true)
	// docs/kubernetes.md says how volumes are enlarged.
	f("storage: {persistence: {size: 1Ti}}", false)
	f("storage: {logPersistence: {enabled: true}}", false)
}

// TestOneServerOfAllZonesIsReplacedAtATime: the budget counts the pods of all StatefulSets together, and those of several zones wait for a person.
func TestOneServerOfAllZonesIsReplacedAtATime(t *testing.T) {
	for values, strategy := range map[string]appsv1.StatefulSetUpdateStrategyType{minimal: appsv1.RollingUpdateStatefulSetStrategyType, zoned: appsv1.OnDeleteStatefulSetStrategyType} {
		all, _, err := render(values)
		if err != nil {
			t.Fatal(err)
		}
		budget, ok := all["PodDisruptionBudget m-spillway-storage"].(*policyv1.PodDisruptionBudget)
		if !ok || budget.Spec.MaxUnavailable.IntValue() != 1 {
			t.Fatalf("%+v", budget)
		}
		for name, object := range all {
			set, ok := object.(*appsv1.StatefulSet)
			if !ok {
				continue
			}
			if set.Spec.UpdateStrategy.Type != strategy {
				t.Errorf("%s: %s, want %s", name, set.Spec.UpdateStrategy.Type, strategy)
			}
			for key, value := range budget.Spec.Selector.MatchLabels {
				if set.Spec.Template.Labels[key] != value {
					t.Errorf("%s is not in the budget: %s", name, fmt.Sprint(set.Spec.Template.Labels))
				}
			}
		}
	}
}
