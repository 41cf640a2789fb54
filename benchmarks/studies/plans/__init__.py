"""Published training runs, each as a plan that is given: errors, order and regret."""
