from locust import HttpUser, task, between


class Visitor(HttpUser):
    host = "http://a.test"
    wait_time = between(0.1, 0.2)

    @task
    def index(self):
        self.client.get("/x")
