// JobSet's controllers with limits that can be chosen.
//
// The program that JobSet ships takes part in admission, which needs certificates. This one starts the same
// controllers, of the version in go.mod, and nothing else; whoever submits a JobSet writes its defaults out.
package main

import (
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

func main() {
	// 500 is what the shipped program has.
	qps := flag.Float64("qps", 500, "requests a second")
	burst := flag.Int("burst", 500, "requests at once")
	namespace := flag.String("namespace", "", "the namespace to watch")
	flag.Parse()

	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	must(kubernetes.AddToScheme(scheme))
	must(jobset.AddToScheme(scheme))
	access := ctrl.GetConfigOrDie()
	access.QPS, access.Burst = float32(*qps), *burst
	options := ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"}
	if *namespace != "" {
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}}
	}
	manager, err := ctrl.NewManager(access, options)
	must(err)
	stop := ctrl.SetupSignalHandler()
	must(controllers.SetupJobSetIndexes(stop, manager.GetFieldIndexer()))
	must(controllers.SetupPodIndexes(stop, manager.GetFieldIndexer()))
	client, recorder := manager.GetClient(), manager.GetEventRecorderFor
	must(controllers.NewJobSetReconciler(client, scheme, recorder("jobset")).SetupWithManager(manager))
	must(controllers.NewPodReconciler(client, scheme, recorder("pod")).SetupWithManager(manager))
	must(manager.Start(stop))
}

func must(err error) {
	if err != nil {
		ctrl.Log.Error(err, "cannot go on")
		os.Exit(1)
	}
}
