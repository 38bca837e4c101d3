import http from 'k6/http';
import { check, sleep } from 'k6';
export const options = {
  vus: 5,
  duration: '10s',
  thresholds: { http_req_duration: ['p(95)<200', 'p(99)<500'], http_req_failed: ['rate<0.01'] },
};
export default function () {
  const res = http.get('http://a.test/x');
  check(res, { 'status is 200': (r) => r.status == 200 });
  sleep(0.1);
}
