from locust import HttpUser, constant_pacing, task


class Visitor(HttpUser):
    host = "http://a.test"
    wait_time = constant_pacing(2)

    @task(3)
    def look(self):
        self.client.get("/items")

    @task
    def order(self):
        self.client.get("/items")
        self.client.post("/orders", json={"item": 3})
