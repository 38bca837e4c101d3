import http from 'k6/http';
export const options = {
  stages: [
    { duration: '30s', target: 20 },
    { duration: '1m', target: 10 },
  ],
};
export default () => http.get("http://a.test/");
