import http from 'k6/http';
import { sleep } from 'k6';
import { randomIntBetween } from 'https://jslib.k6.io/k6-utils/1.4.0/index.js';
const base = 'http://a.test';
export const options = { vus: 5, duration: '10s' };
export default function () {
  http.get(`${base}/items`);
  sleep(randomIntBetween(1, 3));
  http.post(`${base}/orders`, JSON.stringify({ item: 3 }));
  sleep(0.25);
}
