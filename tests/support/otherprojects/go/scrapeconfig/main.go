// Command scrapeconfig does what prometheus-operator does with its objects, without a cluster: it selects and checks
// PodMonitors and PrometheusRules for a Prometheus, and writes the configuration with which that Prometheus would run.
//
// It reads the objects from standard input, as YAML documents, and writes prometheus.yaml and rules.yaml into the folder that
// its argument names. An object that prometheus-operator would reject is an error.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus-operator/prometheus-operator/pkg/assets"
	"github.com/prometheus-operator/prometheus-operator/pkg/operator"
	"github.com/prometheus-operator/prometheus-operator/pkg/prometheus"
	registry "github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	strict "sigs.k8s.io/yaml"
)

type objects struct {
	prometheus *monitoringv1.Prometheus
	monitors   []*monitoringv1.PodMonitor
	rules      []*monitoringv1.PrometheusRule
}

func main() {
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(input io.Reader, folder string) error {
	found, err := read(input)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	monitors, err := found.selected(logger)
	if err != nil {
		return err
	}
	generator, err := prometheus.NewConfigGenerator(logger, found.prometheus)
	if err != nil {
		return err
	}
	store := assets.NewTestStoreBuilder()
	content, err := generator.GenerateServerConfiguration(
		found.prometheus, nil, monitors, nil, nil, store, nil, nil, nil, []string{"rules"})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "prometheus.yaml"), content, 0o600); err != nil {
		return err
	}
	groups := monitoringv1.PrometheusRuleSpec{}
	for _, one := range found.rules {
		if problems := operator.ValidateRule(one.Spec); len(problems) > 0 {
			return fmt.Errorf("PrometheusRule %s: %w", one.Name, errors.Join(problems...))
		}
		groups.Groups = append(groups.Groups, one.Spec.Groups...)
	}
	content, err = strict.Marshal(groups)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "rules.yaml"), content, 0o600)
}

// selected returns the monitors of the namespace that the Prometheus selects, by namespace and name.
func (o *objects) selected(logger *slog.Logger) (map[string]*monitoringv1.PodMonitor, error) {
	metrics := operator.NewMetrics(registry.NewRegistry())
	recorder := record.NewFakeRecorder(len(o.monitors))
	selector, err := prometheus.NewResourceSelector(logger, o.prometheus, assets.NewTestStoreBuilder(), nil, metrics, recorder)
	if err != nil {
		return nil, err
	}
	list := func(namespace string, wanted labels.Selector, take cache.AppendFunc) error {
		for _, one := range o.monitors {
			if one.Namespace == namespace && wanted.Matches(labels.Set(one.Labels)) {
				take(one)
			}
		}
		return nil
	}
	selection, err := selector.SelectPodMonitors(context.Background(), list)
	if err != nil {
		return nil, err
	}
	valid := selection.ValidResources()
	if len(valid) < len(selection) {
		return nil, fmt.Errorf("prometheus-operator rejects %d PodMonitors", len(selection)-len(valid))
	}
	return valid, nil
}

// read takes each document of a known kind, and refuses fields that the kind does not have.
func read(input io.Reader) (*objects, error) {
	found := &objects{}
	documents := yaml.NewYAMLReader(bufio.NewReader(input))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		kind := metav1.TypeMeta{}
		if err := strict.Unmarshal(document, &kind); err != nil {
			return nil, err
		}
		var target any
		switch kind.Kind {
		case monitoringv1.PrometheusesKind:
			found.prometheus = &monitoringv1.Prometheus{}
			target = found.prometheus
		case monitoringv1.PodMonitorsKind:
			monitor := &monitoringv1.PodMonitor{}
			found.monitors = append(found.monitors, monitor)
			target = monitor
		case monitoringv1.PrometheusRuleKind:
			rule := &monitoringv1.PrometheusRule{}
			found.rules = append(found.rules, rule)
			target = rule
		default:
			continue
		}
		if err := strict.UnmarshalStrict(document, target); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
	if found.prometheus == nil {
		return nil, errors.New("no Prometheus in the input")
	}
	return found, nil
}
