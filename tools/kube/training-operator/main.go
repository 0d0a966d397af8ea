// Kubeflow's PyTorchJob controller with limits that can be chosen.
//
// The program that Kubeflow ships has no flag for its client's rate and takes part in admission, which needs
// certificates. This one starts the same controller, of the version in go.mod, and nothing else.
package main

import (
	"flag"
	"os"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	volcanoclient "volcano.sh/apis/pkg/client/clientset/versioned"
)

func main() {
	qps := flag.Float64("qps", 0, "requests a second; 0 keeps the library's default")
	burst := flag.Int("burst", 0, "requests at once; 0 keeps the library's default")
	threads := flag.Int("threads", 1, "jobs looked at side by side")
	namespace := flag.String("namespace", "", "the namespace to watch")
	gang := flag.Bool("gang", false, "make PodGroups for Volcano")
	flag.Parse()

	ctrl.SetLogger(zap.New())
	// Workers wait for their master in an init container made from this template; its file is not here.
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubernetes.AddToScheme, kubeflow.AddToScheme, volcano.AddToScheme} {
		must(add(scheme))
	}
	access := ctrl.GetConfigOrDie()
	if *qps > 0 {
		access.QPS, access.Burst = float32(*qps), *burst
	}
	options := ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"}
	if *namespace != "" {
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}}
	}
	manager, err := ctrl.NewManager(access, options)
	must(err)
	setup := common.GenNonGangSchedulerSetupFunc()
	if *gang {
		setup = common.GenVolcanoSetupFunc(volcanoclient.NewForConfigOrDie(access))
	}
	must(pytorch.NewReconciler(manager, setup).SetupWithManager(manager, *threads))
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		ctrl.Log.Error(err, "cannot go on")
		os.Exit(1)
	}
}
